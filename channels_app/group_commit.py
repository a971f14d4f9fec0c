"""Combine the writes of concurrent threads: one thread, the leader, stores those of a group."""

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from django.db import OperationalError

from channels_app import transactions
from channels_app.models import raw

Order = TypeVar("Order")
Result = TypeVar("Result")


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
        max_wait_s: float = transactions.REQUEST_TIMEOUT_S,
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
        if isinstance(waiter.failure, LeaderLost) or transactions.is_away(waiter.failure):
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
                raise OperationalError(raw.LOST, "The database does not answer those before.")
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
