"""Publish messages through the REST API like a producer, or directly into the tables."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import requests
from django.db import DatabaseError

from channels_app.core.errors import BrokerError, OverQuota, StorageFull
from channels_app.database import clock
from channels_app.ingest import publication, sequencing
from channels_app.ingest.accept import Publication
from channels_app.models import Producer
from channels_app.registry.cache import config_cache
from delivery.core.outcome import parse_retry_after

TIMEOUT_S = 120.0
RETRY_TIMEOUT_S = 120.0
"""Seconds for which a batch is retried while the broker is unavailable or limits the rate."""
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
PASSING = {429, 502, 503, 504, 507}
"""Status codes that mean: nothing was stored, try again."""
TOO_LARGE = 413

Item = Mapping[str, Any]


class Refused(Exception):
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
        """Return results in the order of ``items``. Raises Refused, TooLarge and InDoubt."""


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
                raise Refused(reason)
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
            raise Refused(_detail(answer))
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
        view = config_cache.channel(self.channel)
        if view is None:
            raise Refused(f"There is no channel {self.channel}.")
        now = clock.now()
        read: list[Publication | Result] = []
        for item in items:
            try:
                read.append(publication.from_item(dict(item), view, self.producer, now))
            except BrokerError as problem:
                problem_item = {"field": problem.field, "detail": problem.detail}
                read.append(Result(stored=False, detail=_detail_text(problem_item)))
        wanted = [one for one in read if isinstance(one, Publication)]
        owner = self.producer.id if self.producer else None
        try:
            accepted = iter(sequencing.accept_in_sequence(view, owner, wanted, "command"))
        except (OverQuota, StorageFull) as refused:
            raise Refused(refused.detail) from None
        except DatabaseError as error:
            raise Refused(f"The database did not store this batch: {error}.") from None
        return [one if isinstance(one, Result) else _stored(next(accepted)) for one in read]


def _stored(result: sequencing.Result) -> Result:
    if isinstance(result, BrokerError):
        return Result(False, detail=result.detail)
    if result.conflict:
        return Result(False, detail="The idempotency key was already used for another body.")
    return Result(True, duplicate=result.duplicate)


def _detail_text(item: Mapping[str, Any]) -> str:
    detail, name = str(item.get("detail", "")), item.get("field", "")
    return f"{name}: {detail}" if name and detail else detail


def _detail(answer: requests.Response) -> str:
    """Return the broker's error message, or the status of another server's response."""
    try:
        return f"{answer.json()['detail']} ({answer.status_code})"
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code} {answer.reason}; is that the broker?"


def _retry_after(answer: requests.Response) -> float:
    wait_s = parse_retry_after(answer.headers.get("Retry-After"), datetime.now(UTC))
    return min(wait_s or 0.0, MAX_PAUSE_S)


def _cause(error: requests.RequestException) -> str:
    """Return the innermost cause, since the outer ones name libraries."""
    reason: Any = error
    while isinstance(inner := (reason.args or [""])[0], Exception) or hasattr(reason, "reason"):
        reason = getattr(reason, "reason", inner)
    return str(reason).partition(": ")[2].rstrip(".") or type(reason).__name__
