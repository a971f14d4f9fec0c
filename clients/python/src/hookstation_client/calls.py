"""Describe a call of the REST API as a value, and decide whether to retry it.

The blocking and the asyncio client share everything except sending: operations build a `Call` or
`Pages`, and a client sends it. This module does no I/O.
"""

from __future__ import annotations

import functools
import inspect
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar

import httpx

from hookstation_client.addresses import Address, Addresses
from hookstation_client.errors import ConnectionFailed, HookstationError, error_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator

    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 20.0
MAX_RETRY_AFTER_S = 60.0
"""Longest ``Retry-After`` that the client waits for, in seconds; else it raises the error."""

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures before the request was sent."""
_NOTHING_DONE = frozenset({429, 503, 507})
"""Statuses that, with a ``code``, mean that the broker did nothing."""
_AMBIGUOUS = frozenset({408, 500, 502, 504})
"""Statuses after which the request may have taken effect."""
_AWAY = frozenset({502, 503, 504})
"""Statuses after which the client tries another address."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and the function that parses its response."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    is_repeatable: bool = True
    """Whether the call is idempotent."""
    wait_s: float = 0.0
    """Seconds for which the broker may delay the response (long poll)."""


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list and the cursor of the next one."""

    items: list[T]
    next: str | None


@dataclass(frozen=True)
class Pages(Generic[T]):
    """A list of the API, read page by page."""

    path: str
    parse: Callable[[dict[str, Any]], T]
    params: Mapping[str, Any] = field(default_factory=dict)

    def page(self, cursor: str | None) -> Call[Page[T]]:
        """Return the call for one page; None means the first page."""
        extra = {} if cursor is None else {"cursor": cursor}
        return Call("GET", self.path, self._parse, params={**self.params, **extra})

    def _parse(self, response: httpx.Response) -> Page[T]:
        found = response.json()
        return Page([self.parse(item) for item in found["items"]], found["next"])


def blocking(build: Callable[Concatenate[Any, P], Call[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of the blocking client that sends the call from ``build``."""

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        sent: T = self._send(build(self, *args, **kwargs))
        return sent

    return _documented(method, build)


def listing(
    build: Callable[Concatenate[Any, P], Pages[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return a method of the blocking client that iterates over a list, page by page."""

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items: Iterator[T] = self._iterate(build(self, *args, **kwargs))
        return items

    return _documented(method, build, "Iterator")


def awaiting(
    build: Callable[Concatenate[Any, P], Call[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Like `blocking`, for asyncio."""

    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        sent: T = await self._send(build(self, *args, **kwargs))
        return sent

    return _documented(method, build)


def async_listing(
    build: Callable[Concatenate[Any, P], Pages[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Like `listing`, for asyncio."""

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        items: AsyncIterator[T] = self._iterate(build(self, *args, **kwargs))
        return items

    return _documented(method, build, "AsyncIterator")


def wait_before_retry(
    call: Call[Any], error: HookstationError, retry: int, retries: int
) -> float | None:
    """Return the seconds to wait before retry number ``retry`` (from 0), or None if it is final.

    The waits double from `FIRST_BACKOFF_S` to `MAX_BACKOFF_S`. Half of each is random, so that
    clients that failed at the same time do not retry at the same time.
    """
    if retry >= retries or not _may_repeat(call, error):
        return None
    asked = error.retry_after or 0.0
    if asked > MAX_RETRY_AFTER_S:
        return None
    backoff = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0**retry)
    return max(asked, backoff * 0.5) + random.uniform(0, backoff * 0.5)


class Tries:
    """Choose the address and the wait for each try of one call.

    One round tries each unavailable address at most once, without waiting in between. Each retry
    is another round.
    """

    def __init__(self, call: Call[Any], addresses: Addresses, retries: int) -> None:
        self._call = call
        self._addresses = addresses
        self._retries = retries
        self._retry = 0
        self._tried: list[Address] = []
        self._address: Address | None = None

    def address(self) -> Address:
        """Return the address for the next try."""
        if self._address is None:
            # All may have been tried: a host name can lose DNS records during a call.
            self._address = self._addresses.choose(self._tried) or self._addresses.choose()
        assert self._address is not None  # a client has at least one
        return self._address

    def wait_after(self, error: HookstationError) -> float | None:
        """Return the seconds to wait before the next try, or None if the error is final."""
        if is_away(error):
            address = self.address()
            self._addresses.avoid(address)
            self._address = None
            self._tried.append(address)
            if _may_repeat(self._call, error) and self._addresses.choose(self._tried) is not None:
                return 0.0
        wait = wait_before_retry(self._call, error, self._retry, self._retries)
        if wait is not None:
            self._retry += 1
            self._tried.clear()
        return wait


def is_away(error: HookstationError) -> bool:
    """Return whether the address is unavailable, so that another one should be tried."""
    if isinstance(error, ConnectionFailed):
        return not isinstance(error.__cause__, httpx.PoolTimeout)
    return error.status in _AWAY


def connection_failed(call: Call[Any], cause: httpx.TransportError) -> ConnectionFailed:
    """Return the error for a failure of the transport."""
    code = "not_sent" if isinstance(cause, _UNSENT) else "no_response"
    said = f"{call.method} {call.path}: {str(cause) or type(cause).__name__}"
    return ConnectionFailed(said, code=code)


def check(response: httpx.Response) -> httpx.Response:
    """Return the response if it is a success; else raise its error."""
    if response.is_success:
        return response
    raise error_of(response.status_code, response.headers, response.content)


def as_json(value: Any) -> bytes:
    """Return the body of a JSON request."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_of).encode()


def instant(value: datetime | None) -> str | None:
    """Format an instant for the API. Raises `ValueError` if it has no time zone."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise ValueError("The datetime needs a time zone: datetime.now(timezone.utc).")
    return value.astimezone(timezone.utc).isoformat()


def parse_instant(value: str | None) -> datetime | None:
    """Parse an instant from a response."""
    return datetime.fromisoformat(value.replace("Z", "+00:00")) if value else None


def milliseconds(seconds: float | None) -> int | None:
    """Convert seconds to milliseconds, which the API uses."""
    return None if seconds is None else round(seconds * 1000)


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, with names like ``from_`` changed to ``from``."""
    return {
        name.rstrip("_"): instant(value) if isinstance(value, datetime) else value
        for name, value in values.items()
        if value is not None
    }


def _json_of(value: Any) -> Any:
    if isinstance(value, datetime):
        return instant(value)
    raise TypeError(f"{type(value).__name__} is not serializable as JSON")


def _may_repeat(call: Call[Any], error: HookstationError) -> bool:
    is_undone = error.status in _NOTHING_DONE
    # Without a code the status comes from a proxy, which may have forwarded the request before.
    if error.code == "not_sent" or (is_undone and error.code):
        return True
    is_ambiguous = is_undone or error.code == "no_response" or error.status in _AMBIGUOUS
    return is_ambiguous and call.is_repeatable


def _documented(method: F, build: Callable[..., Any], kind: str = "") -> F:
    """Give the method name, docstring and signature of the operation that it sends."""
    functools.update_wrapper(method, build)
    # `inspect` would show the signature of the wrapped function; it gets one below.
    vars(method).pop("__wrapped__")
    signature = inspect.signature(build)
    value = re.sub(r"^(?:Call|Pages)\[(.*)\]$", r"\1", str(signature.return_annotation))
    returns = f"{kind}[{value}]" if kind else value
    vars(method)["__signature__"] = signature.replace(return_annotation=returns)
    return method
