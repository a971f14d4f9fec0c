"""Store the results of one run on one database as JSON, for tables made later."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.adapters import BenchError
from bench.machine import Machine


@dataclass(slots=True)
class Result:
    """Results of one broker on one database in one run."""

    broker: str
    database: str
    """mariadb or sqlite."""
    is_ours: bool
    mode: str
    """quick or full."""
    run: int
    """From 1."""
    at: str
    """RFC 3339, UTC."""
    machine: Machine
    settings: str
    """Settings of the database, for people."""
    ceiling: float
    """Requests per second from the load generator directly to the sink."""
    values: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Error message by row."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each row."""
    strangers: dict[str, float] = field(default_factory=dict)
    """By row: the share of the machine that other work took (0 to 1)."""

    def save(self, folder: Path) -> Path:
        """Write it into the folder; file names sort by time."""
        folder.mkdir(parents=True, exist_ok=True)
        whose = "ours" if self.is_ours else "beside"
        stamp = self.at.replace(":", "").replace("-", "")
        path = folder / f"{stamp}-{whose}-{self.database}-{self.run}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load from JSON. Raises BenchError."""
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            return cls(**{**found, "machine": Machine(**found["machine"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BenchError(f"{path} holds no result of this harness: {error}") from None


def series(results: Iterable[Result], key: str) -> list[float]:
    """Return the values of a figure in the order of the runs, without runs that lack it."""
    return [result.values[key] for result in results if key in result.values]
