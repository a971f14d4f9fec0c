"""Aside: one piece of work at a time in a thread beside a loop, which hears of its end."""

import select
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from django.db import Error as DatabaseFailure
from django.db import close_old_connections, connection, connections

T = TypeVar("T")


class Aside(Generic[T]):
    """Work for the database that a loop does not wait for; readable once it has ended.

    On SQLite, where one writer keeps out all others, it is done where it was asked for: beside the
    loop it would only be polled for.
    """

    def __init__(self) -> None:
        self._is_here = connection.vendor == "sqlite"
        self._executor = _Here() if self._is_here else ThreadPoolExecutor(1, "aside")
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._job: Future[T] | None = None

    def fileno(self) -> int:
        """For selectors."""
        return self._ear.fileno()

    @property
    def is_busy(self) -> bool:
        """Whether there is work that nobody has taken back yet."""
        return self._job is not None

    def start(self, work: Callable[[], T]) -> None:
        """Begin; for use while it is not busy."""
        self._job = self._executor.submit(_minded, work)
        self._job.add_done_callback(lambda job: self._mouth.send(b"."))

    def has_ended(self) -> bool:
        """Whether there is something to take; asked once, and taken then."""
        try:
            return bool(self._job and self._ear.recv(1))
        except BlockingIOError:
            return False

    def take(self) -> T:
        """What the work came to; raises what it raised."""
        job, self._job = self._job, None
        assert job is not None
        return job.result()

    def wait(self) -> None:
        """Until it has ended, should it be busy."""
        if self._job:
            select.select([self._ear], [], [])

    def close(self) -> None:
        """Let the thread and its connection go."""
        if not self._is_here:
            self._executor.submit(connections.close_all)
        self._executor.shutdown()
        self._ear.close()
        self._mouth.close()


class _Here(Executor):
    """Does at once what it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        job: Future[Any] = Future()
        try:
            job.set_result(fn(*args, **kwargs))
        except Exception as error:
            job.set_exception(error)
        return job


def _minded(work: Callable[[], T]) -> T:
    """Drops a connection that broke: nothing else does in a thread that serves no requests."""
    try:
        return work()
    except DatabaseFailure:
        close_old_connections()
        raise
