"""Run transactions, retry those that the database rolls back, and combine small ones."""

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    IntegrityError,
    OperationalError,
    connection,
    connections,
    transaction,
)

from channels_app import failpoints
from channels_app.database import raw
from channels_app.database.raw import dialect

T = TypeVar("T")
ATTEMPTS = 4
ANSWER_TIMEOUT_S = 60
"""Longest wait for the database's response, in seconds; longer than its own wait for a lock."""
REQUEST_TIMEOUT_S = 30
"""The limit for processes that respond to requests: for the turn to commit, and again for the
commit. So a request takes at most a minute, whatever the database does."""
Order = TypeVar("Order")
Result = TypeVar("Result")


def limit_answer_time(seconds: int = ANSWER_TIMEOUT_S) -> None:
    """Limit how long a statement of this process waits for a response.

    For processes that live long: if the database's host vanishes, no connection is closed, and
    they would wait two hours until the kernel closes it. Management commands have no limit, since
    a migration of large tables takes long.
    """
    options = connections.settings[DEFAULT_DB_ALIAS]["OPTIONS"]
    for name, value in dialect.answer_limit(seconds).items():
        options.setdefault(name, value)


def run(
    work: Callable[[], T],
    *,
    on_collision: Callable[[], None] | None = None,
    attempts: int = ATTEMPTS,
) -> T:
    """Run ``work`` in one transaction, and again if others made the database undo it.

    With ``on_collision`` a violated unique key is retried too, after a call of it. Raises what the
    last try raised.
    """

    def attempt() -> T:
        with transaction.atomic():
            return work()

    return retry(attempt, on_collision=on_collision, attempts=attempts)


def retry(
    work: Callable[[], T],
    *,
    on_collision: Callable[[], None] | None = None,
    attempts: int = ATTEMPTS,
) -> T:
    """As ``run``, for work that opens its transaction itself."""
    for remaining in reversed(range(attempts)):
        try:
            return work()
        except OperationalError as error:
            if not remaining or not dialect.is_undone(error):
                raise
        except IntegrityError:
            if not remaining or on_collision is None:
                raise
            on_collision()
    raise AssertionError("unreachable")


def write(statements: Sequence[raw.Statement]) -> None:
    """Execute all ``statements`` or none; where possible in one round trip, with BEGIN and COMMIT.

    A packet of several statements has up to a few MiB (``max_allowed_packet``).
    Raises what the database raises; nothing was stored then, unless the connection broke
    (`Dialect.is_away`).
    """
    if connection.in_atomic_block:
        _write_each(statements)
    elif dialect.takes_packets and raw.fit_together(statements):
        _write_at_once(statements)
    else:
        with transaction.atomic():
            _write_each(statements)


def snapshot() -> AbstractContextManager[None]:
    """Read a consistent state of the database: concurrent changes are not seen.

    Takes no locks and waits for none. It must be short, because the database keeps old row versions
    for it. Inside a transaction it is that one.
    """
    return nullcontext() if connection.in_atomic_block else dialect.snapshot()


class LeaderLost(Exception):
    """The thread that wrote for others was interrupted: what became of their orders is unknown."""


class _Waiter(Generic[Order, Result]):
    """One caller's order and its outcome."""

    __slots__ = ("failure", "leads", "order", "result", "size", "wakeup")

    def __init__(self, order: Order, size: int) -> None:
        self.order = order
        self.size = size
        self.leads = False
        self.wakeup = threading.Lock()
        """Held until there is a result or a failure, or until the caller becomes the leader."""
        self.wakeup.acquire()
        self.result: Result
        self.failure: Exception | None = None


class GroupCommit(Generic[Order, Result]):
    """Runs ``work`` for one group of callers at a time.

    A caller that finds no leader becomes the leader at once, without waiting for more callers.
    Callers that arrive while it works form the next group, which the first of them leads. So a
    caller never works for more than its own group.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Order]], Sequence[Result]],
        *,
        max_orders: int,
        max_size: int,
        max_wait_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """``work`` returns one result per order, in their sequence, or stores nothing and raises.

        After an error each member of the group retries alone, in its own thread, unless the
        database is unavailable or it is unknown what was stored. A group has at most ``max_orders``
        orders with a total size of at most ``max_size``, in the callers' unit; a larger order is
        stored alone. A caller waits at most ``max_wait_s`` seconds for the groups before it.
        """
        self._work = work
        self._max_orders = max_orders
        self._max_size = max_size
        self._max_wait_s = max_wait_s
        self._lock = threading.Lock()
        self._has_leader = False
        self._waiting: deque[_Waiter[Order, Result]] = deque()

    def run(self, order: Order, size: int) -> Result:
        """Return the result of ``order``.

        Raises what ``work`` raises, LeaderLost, and OperationalError if the groups before it took
        too long; in that last case nothing of the order is stored.
        """
        waiter: _Waiter[Order, Result] = _Waiter(order, size)
        with self._lock:
            if self._has_leader:
                self._waiting.append(waiter)
            else:
                self._has_leader = waiter.leads = True
        if not waiter.leads:
            self._wait(waiter)
        if waiter.leads:
            self._lead(waiter)
        if waiter.failure is None:
            return waiter.result
        if isinstance(waiter.failure, LeaderLost) or dialect.is_away(waiter.failure):
            raise waiter.failure
        (result,) = self._work([order])
        return result

    def _wait(self, waiter: _Waiter[Order, Result]) -> None:
        """Wait until the seat is called.

        Raises OperationalError if it is still queued after ``patience_s`` seconds.
        """
        if waiter.wakeup.acquire(timeout=self._max_wait_s):
            return
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                raise dialect.lost("The database does not answer those before.")
        waiter.wakeup.acquire()  # its group is being stored, or it leads; both end

    def _lead(self, leader: _Waiter[Order, Result]) -> None:
        group = [leader]
        try:
            group += self._next_group(leader.size)
            for waiter, result in zip(
                group, self._work([waiter.order for waiter in group]), strict=True
            ):
                waiter.result = result
        except Exception as error:
            if len(group) == 1:
                raise
            leader.failure = error
            for waiter in group[1:]:
                # Each thread raises a copy of its own, since raising sets the traceback.
                waiter.failure = copy.copy(error)
        except BaseException:
            for waiter in group[1:]:
                waiter.failure = LeaderLost(LeaderLost.__doc__)
            raise
        finally:
            # First, so that the next group starts while this group's threads are woken.
            self._hand_over()
            for waiter in group[1:]:
                waiter.wakeup.release()

    def _next_group(self, size: int) -> list[_Waiter[Order, Result]]:
        waiters: list[_Waiter[Order, Result]] = []
        with self._lock:
            while self._waiting and len(waiters) + 1 < self._max_orders:
                size += self._waiting[0].size
                if size > self._max_size:
                    break
                waiters.append(self._waiting.popleft())
        return waiters

    def _hand_over(self) -> None:
        with self._lock:
            if not self._waiting:
                self._has_leader = False
                return
            next_leader = self._waiting.popleft()
            next_leader.leads = True
        next_leader.wakeup.release()


def _write_each(statements: Sequence[raw.Statement]) -> None:
    for sql, values in statements:
        raw.execute(sql, values)
    failpoints.reach("in_write")


def _write_at_once(statements: Sequence[raw.Statement]) -> None:
    sql = "; ".join(["BEGIN", *[sql for sql, _ in statements], "COMMIT"])
    values = [value for _, values in statements for value in values]
    cursor = connection.cursor()
    try:
        cursor.execute(sql, values)
        # One result for each statement; the first that failed is the last.
        results = 1
        while cursor.nextset():
            results += 1
        if results < len(statements) + 2:
            raise dialect.lost("The server did not answer for all of a packet.")
    except Error as error:
        try:
            cursor.execute("ROLLBACK")
        except Error:
            connection.close()
            raise dialect.lost(str(error)) from error
        raise
    except BaseException:
        # Interrupted: the remaining results would be taken for those of the next statement.
        connection.close()
        raise
