"""A baseline without a broker: the benchmark posts straight to the consumer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from bench.adapters import Consumer, Route, one


class Direct:
    """The benchmark's interface of a broker, with no broker behind it."""

    name = "nothing at all"

    def __init__(self, database_url: str, folder: Path) -> None:
        self.calls: list[str] = []
        self._url = ""

    def start(self) -> None:
        self.calls.append("start")

    def prepare(self, consumers: Sequence[Consumer]) -> None:
        self._url = consumers[0].url

    def single(self) -> Route:
        at = urlsplit(self._url)
        return Route(at.hostname or "", at.port or 0, at.path, {}, one, accepted=(200,))

    def batch(self) -> Route | None:
        return None

    def processes(self) -> Mapping[str, Sequence[int]]:
        return {"web": []}

    def kill(self) -> None:
        self.calls.append("kill")

    def stop(self) -> None:
        self.calls.append("stop")
