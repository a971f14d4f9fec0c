"""The errors of the client: one class for each kind of refusal, all with the broker's `code`."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from typing import Any


class HookstationError(Exception):
    """A request that the broker refused, or that did not reach it.

    ``code`` is the broker's stable name of the error (the table in docs/api.md), ``status`` the
    HTTP status (0 where there was no response), ``detail`` a sentence for people, ``fields`` the
    fields or headers at fault, each with what is wrong with it.
    """

    def __init__(
        self,
        detail: str,
        *,
        code: str = "",
        status: int = 0,
        fields: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code
        self.status = status
        self.fields: dict[str, str] = dict(fields or {})
        self.retry_after = retry_after
        """Seconds to wait before the next try, where the broker names them."""

    def __str__(self) -> str:
        # The detail of several faults names their fields, that of a single one does not.
        field = next(iter(self.fields)) if len(self.fields) == 1 else ""
        return ": ".join(part for part in (self.code, field, self.detail) if part)


class BadRequest(HookstationError):
    """The request cannot be used as it is (400, 405, 411, 413, 415, 422)."""


class Unauthorized(HookstationError):
    """There is no valid key (401)."""


class Forbidden(HookstationError):
    """The key is valid and may not do this (403)."""


class NotFound(HookstationError):
    """There is no such object for this key (404)."""


class Conflict(HookstationError):
    """The state of the object forbids it, or somebody else changed it first (409, 412)."""


class RateLimited(HookstationError):
    """A rate or a quota is used up (429); ``retry_after`` says for how many seconds."""


class Unavailable(HookstationError):
    """The broker cannot do it now (5xx). Nothing was stored where ``status`` is 503 or 507."""


class ConnectionFailed(HookstationError):
    """There was no response: no connection, or it broke, or it took too long."""


class LeaseLost(Conflict):
    """A lease ended before the call: the message may be with another worker by now."""


class SignatureError(ValueError):
    """A webhook that is not signed with the secret, or whose timestamp is too old or too new."""


class Retry(Exception):
    """Raised by a handler: the message is to come again, ``after`` so many seconds at least.

    A push consumer's own retry policy may wait longer. With ``pause`` the broker holds back
    everything for this consumer meanwhile, up to a minute: for a handler whose own database is
    down. A worker's messages come again after exactly that time.
    """

    def __init__(self, after: float = 0, reason: str = "", *, pause: bool = False) -> None:
        super().__init__(reason or f"retry after {after} s")
        self.after = after
        self.pause = pause


class Reject(Exception):
    """Raised by a handler: it can never handle this message, which is a dead letter at once."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)


_CLASSES: dict[int, type[HookstationError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    429: RateLimited,
}


def error_of(status: int, headers: Mapping[str, str], content: bytes) -> HookstationError:
    """The error that a response stands for: an RFC 9457 problem, or whatever a proxy answered."""
    problem = _problem(content)
    listed: list[dict[str, Any]] = problem.get("errors") or [problem]
    fields = {
        str(item["field"]): str(item.get("detail", "")) for item in listed if item.get("field")
    }
    kind = _CLASSES.get(status, Unavailable if status >= 500 else BadRequest)
    return kind(
        str(problem.get("detail") or f"HTTP status {status}"),
        code=str(problem.get("code", "")),
        status=status,
        fields=fields,
        retry_after=seconds_of(headers.get("Retry-After")),
    )


def error_of_item(item: Mapping[str, Any]) -> HookstationError:
    """The error of one item of a batch."""
    return error_of(int(item["status"]), {}, json.dumps(dict(item)).encode())


def seconds_of(retry_after: str | None) -> float | None:
    """Seconds that a ``Retry-After`` header names, as a number or a date (RFC 9110, 10.2.3)."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        then = email.utils.parsedate_to_datetime(retry_after)
        return max(0.0, then.timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _problem(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
