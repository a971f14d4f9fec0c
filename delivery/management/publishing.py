"""Publish a file of messages in batches, and report the result of each line."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import requests
from django.db import DatabaseError

from channels_app.conf import MAX_BATCH_ITEMS
from channels_app.core.errors import BrokerError, OverQuota, StorageFull
from channels_app.database import clock
from channels_app.ingest import publication, sequencing
from channels_app.ingest.accept import Publication
from channels_app.models import Producer
from channels_app.registry.cache import config_cache
from delivery.core.outcome import parse_retry_after
from delivery.management.base import ProgressBar, counted, sized

BATCH_BYTES = 8 * 1024 * 1024
"""Maximum bytes of a request, unless a single message is larger; half of the broker's default
limit."""
FIELDS = (
    *("body", "body_base64", "content_type", "event_type", "priority", "idempotency_key"),
    *("ordering_key", "deliver_at", "delay_ms", "expires_at", "headers"),
)
TIMEOUT_S = 120.0
RETRY_TIMEOUT_S = 120.0
"""Seconds for which a batch is retried while the broker is unavailable or limits the rate."""
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
PASSING = {429, 502, 503, 504, 507}
"""Status codes that mean: nothing was stored, try again."""
TOO_LARGE = 413

Item = Mapping[str, Any]
SHOWN = 10
"""Refused lines that are printed; further ones are counted."""


@dataclass(frozen=True, slots=True)
class InputLine:
    """One line: the item to send, or its error."""

    number: int
    """Number of the line, from 1."""
    item: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    """Approximate bytes of the item on the wire."""
    fault: str = ""


@dataclass(slots=True)
class Reader:
    """Reads lines one by one, so that memory does not grow with the file."""

    content_type: str = "application/json"
    """Content type of messages without one."""
    idempotent: bool = False
    """Add an idempotency key, made from the line and its number, to each message without one."""
    unused: Counter[str] = field(default_factory=Counter)
    """Unknown fields with their number of occurrences."""

    def read(self, lines: Iterable[bytes]) -> Iterator[InputLine]:
        """Yield every line that is not blank."""
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                continue
            try:
                line = self._line(number, text.strip())
            except RecursionError:
                line = InputLine(number, fault="This JSON is nested too deeply.")
            yield line

    def _line(self, number: int, text: bytes) -> InputLine:
        try:
            given = json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            return InputLine(number, fault=f"This is not JSON: {error}.")
        if not isinstance(given, dict):
            return InputLine(number, fault="Each line must be a JSON object.")
        item = {name: given[name] for name in FIELDS if given.get(name) is not None}
        if "event" in given:
            if "event_type" in item:
                return InputLine(number, fault="Give either event or event_type, not both.")
            item["event_type"] = given["event"]
        self.unused.update(given.keys() - {*FIELDS, "event"})
        if "body" not in item and "body_base64" not in item:
            return InputLine(number, fault="There is no body.")
        if not isinstance(item.get("body", ""), str):
            # A JSON value in the line, as opposed to text.
            item["body"] = json.dumps(item["body"], ensure_ascii=False, separators=(",", ":"))
        item.setdefault("content_type", self.content_type)
        if self.idempotent and "idempotency_key" not in item:
            item["idempotency_key"] = hashlib.sha256(b"%d:%b" % (number, text)).hexdigest()
        return InputLine(number, item, len(json.dumps(item)))


def batches(
    lines: Iterable[InputLine], *, items: int = MAX_BATCH_ITEMS, size: int = BATCH_BYTES
) -> Iterator[list[InputLine]]:
    """Yield batches of at most ``items`` messages and about ``size`` bytes."""
    batch: list[InputLine] = []
    weight = 0
    for line in lines:
        if batch and (len(batch) == items or weight + line.size > size):
            yield batch
            batch, weight = [], 0
        batch.append(line)
        weight += line.size
    if batch:
        yield batch


class PublishRefused(Exception):
    """The batch was not stored, and no later one will be; the message gives the reason."""


class TooLarge(Exception):
    """The request is too large for the broker, which stored nothing; the message says so."""


class InDoubt(Exception):
    """The connection broke during a request with messages without idempotency keys."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one message."""

    stored: bool
    duplicate: bool = False
    detail: str = ""
    """Why it was refused."""


class Outlet(Protocol):
    """Publishes batches."""

    def publish(self, items: Sequence[Item]) -> list[Result]:
        """Return results in the order of ``items``. Raises PublishRefused, TooLarge and InDoubt."""


@dataclass(slots=True)
class Api:
    """Publishes through the batch endpoint of any broker."""

    url: str
    channel: str
    key: str = field(repr=False)
    retry_timeout_s: float = RETRY_TIMEOUT_S
    on_pause: Callable[[str], None] = lambda reason: None
    """Called with the reason at the first of consecutive failures."""
    _session: requests.Session = field(default_factory=requests.Session)

    def publish(self, items: Sequence[Item]) -> list[Result]:
        """Retry until there is a response, as long as repeating is safe."""
        end = time.monotonic() + self.retry_timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                answer = self._post(items)
            except requests.ConnectionError as error:
                self._check_safe(items, error)
                reason = f"{self.url} cannot be reached: {_cause(error)}."
            except requests.RequestException as error:
                self._check_safe(items, error)
                reason = f"{self.url} did not answer: {_cause(error)}."
            else:
                if answer.status_code == TOO_LARGE:
                    raise TooLarge(_detail(answer))
                if answer.status_code not in PASSING:
                    return self._results(answer)
                pause_s = max(pause_s, _retry_after(answer))
                reason = _detail(answer)
            if time.monotonic() + pause_s > end:
                raise PublishRefused(reason)
            if pause_s == FIRST_PAUSE_S:
                self.on_pause(reason)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _post(self, items: Sequence[Item]) -> requests.Response:
        return self._session.post(
            f"{self.url}/api/v1/channels/{self.channel}/messages/batch",
            json=list(items),
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=TIMEOUT_S,
            # A redirected POST would become a GET, or send the key to another host.
            allow_redirects=False,
        )

    def _check_safe(self, items: Sequence[Item], error: requests.RequestException) -> None:
        never_sent = isinstance(error, requests.ConnectTimeout) or "NewConnection" in repr(error)
        if not never_sent and not all("idempotency_key" in item for item in items):
            raise InDoubt(_cause(error)) from None

    def _results(self, answer: requests.Response) -> list[Result]:
        if answer.status_code != 207:
            raise PublishRefused(_detail(answer))
        return [
            Result(
                stored=item["status"] < 300,
                duplicate=bool(item.get("duplicate")),
                detail=_detail_text(item),
            )
            for item in answer.json()["items"]
        ]


@dataclass(slots=True)
class Direct:
    """Writes to this installation's tables, without a web server and without a rate limit."""

    channel: str
    producer: Producer | None = None

    def publish(self, items: Sequence[Item]) -> list[Result]:
        """Check each item as the batch endpoint does, and store the valid ones."""
        channel = config_cache.channel(self.channel)
        if channel is None:
            raise PublishRefused(f"There is no channel {self.channel}.")
        now = clock.now()
        read: list[Publication | Result] = []
        for item in items:
            try:
                read.append(publication.from_item(dict(item), channel, self.producer, now))
            except BrokerError as problem:
                problem_item = {"field": problem.field, "detail": problem.detail}
                read.append(Result(stored=False, detail=_detail_text(problem_item)))
        wanted = [item for item in read if isinstance(item, Publication)]
        owner = self.producer.id if self.producer else None
        try:
            accepted = iter(sequencing.accept_in_sequence(channel, owner, wanted, "command"))
        except (OverQuota, StorageFull) as refused:
            raise PublishRefused(refused.detail) from None
        except DatabaseError as error:
            raise PublishRefused(f"The database did not store this batch: {error}.") from None
        return [
            result if isinstance(result, Result) else _stored(next(accepted)) for result in read
        ]


class Run:
    """Publishes all batches once. Without an outlet it only checks whether they can be parsed."""

    def __init__(self, outlet: Outlet | None, progress: ProgressBar) -> None:
        self.done = 0
        """Lines that are processed."""
        self.refused = 0
        self.shown: list[str] = []
        self.broken = ""
        """Why it stopped before the end; '' if it did not."""
        self._outlet = outlet
        self._progress = progress
        self._stored = self._duplicates = self._bytes = 0
        self._started = time.monotonic()

    def go(self, work: Iterable[list[InputLine]]) -> None:
        """Publish batch after batch, until all are done or a failure is permanent."""
        for batch in work:
            self._publish([line for line in batch if not line.fault])
            if self.broken:
                return
            for line in batch:
                if line.fault:
                    self._refuse(line, line.fault)
            self._progress.show(self.done)

    def summary(self) -> str:
        """Return the numbers and the rate."""
        took = max(time.monotonic() - self._started, 1e-9)
        parts = [f"{counted(self._stored, 'message')} ({sized(self._bytes)}) can be read"]
        if self._outlet is not None:
            parts = [
                f"{counted(self._stored, 'message')} ({sized(self._bytes)}) stored in {took:.1f} s",
                f"{self._stored / took:,.0f} a second",
            ]
        if self._duplicates:
            parts.append(f"{self._duplicates:,} of them stored before")
        if self.refused:
            parts.append(f"{self.refused:,} refused")
        return ", ".join(parts) + "."

    def _publish(self, lines: list[InputLine]) -> None:
        """Publish a batch, split if it is too large. Sets ``broken``."""
        try:
            results = self._send(lines)
        except TooLarge as error:
            if len(lines) == 1:
                self._refuse(lines[0], str(error))
                return
            half = len(lines) // 2
            for part in (lines[:half], lines[half:]):
                if not self.broken:
                    self._publish(part)
        except PublishRefused as error:
            self.broken = str(error)
        except InDoubt as error:
            self.broken = (
                f"the connection broke ({error}) while lines {lines[0].number} to "
                f"{lines[-1].number} were being sent; they may or may not be stored. With "
                "--idempotent the file could be published again."
            )
        else:
            for line, result in zip(lines, results, strict=True):
                self._note(line, result)

    def _send(self, lines: list[InputLine]) -> list[Result]:
        if self._outlet is None or not lines:
            return [Result(stored=True)] * len(lines)
        return self._outlet.publish([line.item for line in lines])

    def _note(self, line: InputLine, result: Result) -> None:
        if not result.stored:
            self._refuse(line, result.detail)
            return
        self.done += 1
        self._stored += 1
        self._duplicates += result.duplicate
        self._bytes += line.size

    def _refuse(self, line: InputLine, reason: str) -> None:
        self.done += 1
        self.refused += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"Line {line.number}: {reason}")


def _refuse(constant: str) -> None:
    """Refuse constants that Python accepts and JSON lacks."""
    raise ValueError(f"{constant} is not a JSON value")


def _cause(error: requests.RequestException) -> str:
    """Return the innermost cause, since the outer ones name libraries."""
    reason: Any = error
    while isinstance(inner := (reason.args or [""])[0], Exception) or hasattr(reason, "reason"):
        reason = getattr(reason, "reason", inner)
    return str(reason).partition(": ")[2].rstrip(".") or type(reason).__name__


def _detail(answer: requests.Response) -> str:
    """Return the broker's error message, or the status of another server's response."""
    try:
        return f"{answer.json()['detail']} ({answer.status_code})"
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code} {answer.reason}; is that the broker?"


def _retry_after(answer: requests.Response) -> float:
    wait_s = parse_retry_after(answer.headers.get("Retry-After"), datetime.now(UTC))
    return min(wait_s or 0.0, MAX_PAUSE_S)


def _detail_text(item: Mapping[str, Any]) -> str:
    detail, name = str(item.get("detail", "")), item.get("field", "")
    return f"{name}: {detail}" if name and detail else detail


def _stored(result: sequencing.Result) -> Result:
    if isinstance(result, BrokerError):
        return Result(False, detail=result.detail)
    if result.conflict:
        return Result(False, detail="The idempotency key was already used for another body.")
    return Result(True, duplicate=result.duplicate)
