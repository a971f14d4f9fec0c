"""Run what waits for the database in threads, so that the event loop serves the other calls."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from django.db import close_old_connections

log = logging.getLogger(__name__)
T = TypeVar("T")


class Threads:
    """A number of threads, each with a connection to the database."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="grpc")

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return what ``work`` returns, or raise what it raises.

        If the waiting coroutine is cancelled, the work continues.
        """
        return await asyncio.shield(asyncio.wrap_future(self._pool.submit(_run, work, arguments)))

    def submit(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Run ``work`` without waiting for it. An error is logged."""
        self._pool.submit(_run, work, arguments).add_done_callback(_log_failure)

    def close(self) -> None:
        """Finish the work in progress."""
        self._pool.shutdown()


def _run(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    try:
        return work(*arguments)
    finally:
        close_old_connections()


def _log_failure(done: "Future[Any]") -> None:
    if error := done.exception():
        log.warning("the end of a stream could not be stored: %s", error)
