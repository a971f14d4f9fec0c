"""Let a request to granian wait without holding a thread.

granian calls a WSGI application in a thread of a pool, with an object that takes the response. That
object accepts it at any time and from any thread; only granian's own wrapper of the application
responds at once. So the environment of a request gets a function that defers the response
(`DEFER_RESPONSE`). Without it, on another server or a granian with other internals, the thread
waits.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from granian.server import mp

from channels_app.api.fast_path import DEFER_RESPONSE, DeferResponse, Response

logger = logging.getLogger(__name__)

WRAP = "_wsgi_call_wrap"
"""Name in `granian.server.mp` of the function that wraps the application in a worker."""
PARAMETERS = ["callback", "scope_opts", "access_log_fmt"]


class _Application(Protocol):
    """Takes a response: granian's object, or ours in its place."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send the whole response."""

    def response_iter(self, status: int, headers: list[tuple[str, str]], body: Any) -> None:
        """Send the response in parts; the next one is requested when the previous one was sent.

        If the client has disconnected, no part after the first one is requested.
        """


class _Deferrable:
    """Passes a response on to granian, unless it was deferred."""

    __slots__ = ("_inner", "_is_postponed")

    def __init__(self, inner: _Application) -> None:
        self._inner, self._is_postponed = inner, False

    def response_bytes(self, *answer: Any) -> None:
        """Pass on what the application returned."""
        if not self._is_postponed:
            self._inner.response_bytes(*answer)

    def response_iter(self, *answer: Any) -> None:
        """Pass on a response in parts."""
        if not self._is_postponed:
            self._inner.response_iter(*answer)

    def defer(self) -> DeferResponse:
        """See `channels_app.api.fast_path.Defer`."""
        self._is_postponed = True
        return self._answer

    def _answer(self, answer: Response, confirm: Callable[[], object]) -> bool:
        is_there = False

        def parts() -> Iterator[bytes]:
            nonlocal is_there
            yield b""  # sends no byte, but shows whether the client is still connected
            is_there = True
            confirm()
            yield answer.body

        self._inner.response_iter(answer.status, list(answer.headers), parts())
        return is_there


def install() -> None:
    """Offer deferred responses in this process; call it before granian wraps the application."""
    wrap: Callable[..., Callable[..., Any]] | None = getattr(mp, WRAP, None)
    parameters = [] if wrap is None else [*inspect.signature(wrap).parameters]
    if wrap is None or parameters != PARAMETERS:
        logger.error(
            "this version of granian cannot defer responses: each waiting receive call holds a "
            "thread"
        )
        return

    def deferrable(*arguments: Any) -> Callable[..., Any]:
        run = wrap(*arguments)

        def call(application: _Application, environ: dict[str, Any]) -> Any:
            ours = _Deferrable(application)
            environ[DEFER_RESPONSE] = ours.defer
            return run(ours, environ)

        return call

    setattr(mp, WRAP, deferrable)
