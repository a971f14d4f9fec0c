"""The errors of the client: one class for each kind, all with the broker's `code`."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from typing import Any


class HookstationError(Exception):
    """A request failed: the broker refused it, or did not respond.

    ``code`` is the broker's stable name of the error (see the table in docs/api.md), ``status`` the
    HTTP status (0 without a response), ``detail`` a sentence for people. ``fields`` maps the name
    of each invalid field or header to what is wrong with it.
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
        """Seconds to wait before the next try, if the broker sent ``Retry-After``."""

    def __str__(self) -> str:
        # The detail names the fields only if several are invalid.
        field = next(iter(self.fields)) if len(self.fields) == 1 else ""
        return ": ".join(part for part in (self.code, field, self.detail) if part)


class BadRequest(HookstationError):
    """The request is invalid (400, 405, 411, 413, 415, 422)."""


class Unauthorized(HookstationError):
    """The API key is missing or invalid (401)."""


class Forbidden(HookstationError):
    """The API key does not permit this (403)."""


class NotFound(HookstationError):
    """The object does not exist, or the API key may not see it (404)."""


class Conflict(HookstationError):
    """The object's state does not allow it, or the object was changed meanwhile (409, 412)."""


class RateLimited(HookstationError):
    """A rate limit or quota is exceeded (429); ``retry_after`` has the seconds to wait."""


class Unavailable(HookstationError):
    """The broker cannot do it now (5xx). If ``status`` is 503 or 507, nothing was stored."""


class ConnectionFailed(HookstationError):
    """There was no response: connecting failed, the connection broke, or a timeout ended."""


class LeaseLost(Conflict):
    """The lease ended before the call; another worker may have received the message."""


class SignatureError(ValueError):
    """The webhook is not signed with the secret, or its timestamp is too old or too new."""


class Retry(Exception):
    """Raise it in a handler to have the message delivered again, ``after`` seconds at the earliest.

    For a push consumer, its retry policy may set a longer time. With ``pause`` the broker also
    sends this consumer nothing else until then, for up to a minute: use it if the handler's own
    database is down. A worker receives the message again after exactly ``after`` seconds.
    """

    def __init__(self, after: float = 0, reason: str = "", *, pause: bool = False) -> None:
        super().__init__(reason or f"retry after {after} s")
        self.after = after
        self.pause = pause


class Reject(Exception):
    """Raise it in a handler that can never handle the message: it becomes a dead letter at once."""

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
    """Return the error for a response: an RFC 9457 problem, or any response of a proxy."""
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
    """Return the error of one item of a batch."""
    return error_of(int(item["status"]), {}, json.dumps(dict(item)).encode())


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds in a ``Retry-After`` header, a number or a date (RFC 9110, 10.2.3)."""
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
