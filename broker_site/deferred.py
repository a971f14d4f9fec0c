"""Deferred responses: a waiting request to granian holds no thread.

granian calls a WSGI application in a thread of a pool, with an object that takes the answer. That
object takes it whenever and from whichever thread it comes; only granian's own wrapper of the
application answers at once. So the application's environment gets a way to postpone the answer
(`DEFER_RESPONSE`). What has none, another server or a granian that is built otherwise, lets the
thread wait.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from granian.server import mp

from channels_app.api.fast_path import DEFER_RESPONSE, DeferResponse, Response

logger = logging.getLogger(__name__)

WRAP = "_wsgi_call_wrap"
"""Name in `granian.server.mp` of what wraps the application, in a worker that has loaded it."""
PARAMETERS = ["callback", "scope_opts", "access_log_fmt"]


class _Taker(Protocol):
    """What takes an answer; granian's, and ours in its place."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """The whole answer."""

    def response_iter(self, status: int, headers: list[tuple[str, str]], body: Any) -> None:
        """Its parts, each of which is asked for when the one before is on its way.

        Where the client is gone none is asked for behind the first one.
        """


class _Deferrable:
    """Passes an answer on to granian, unless that was postponed."""

    __slots__ = ("_inner", "_is_postponed")

    def __init__(self, inner: _Taker) -> None:
        self._inner, self._is_postponed = inner, False

    def response_bytes(self, *answer: Any) -> None:
        """What the application has returned."""
        if not self._is_postponed:
            self._inner.response_bytes(*answer)

    def response_iter(self, *answer: Any) -> None:
        """The same in parts."""
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
            yield b""  # no byte on the wire: only whether somebody takes it
            is_there = True
            confirm()
            yield answer.body

        self._inner.response_iter(answer.status, list(answer.headers), parts())
        return is_there


def install() -> None:
    """Have granian offer it in this process; before it wraps the application."""
    wrap: Callable[..., Callable[..., Any]] | None = getattr(mp, WRAP, None)
    known = [] if wrap is None else [*inspect.signature(wrap).parameters]
    if wrap is None or known != PARAMETERS:
        logger.error(
            "this version of granian cannot defer responses: each waiting receive call holds a "
            "thread"
        )
        return

    def deferrable(*arguments: Any) -> Callable[..., Any]:
        run = wrap(*arguments)

        def call(taker: _Taker, environ: dict[str, Any]) -> Any:
            ours = _Deferrable(taker)
            environ[DEFER_RESPONSE] = ours.defer
            return run(ours, environ)

        return call

    setattr(mp, WRAP, deferrable)
