"""Group commit: what concurrent threads want to store, one of them stores for all who wait."""

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
    """One caller and what became of its order."""

    __slots__ = ("failure", "leads", "order", "result", "size", "wakeup")

    def __init__(self, order: Order, size: int) -> None:
        self.order = order
        self.size = size
        self.leads = False
        self.wakeup = threading.Lock()
        """Held until there is a result, a failure, or the lead to take over."""
        self.wakeup.acquire()
        self.result: Result
        self.failure: Exception | None = None


class GroupCommit(Generic[Order, Result]):
    """Runs ``work`` for one group of callers at a time.

    Nobody waits for company: whoever finds no leader is the leader, at once and perhaps alone.
    Those who come while it works are the next group, and the first of them leads it, so that no
    caller ever works for more than its own group.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Order]], Sequence[Result]],
        *,
        max_orders: int,
        max_size: int,
        max_wait_s: float = transactions.REQUEST_TIMEOUT_S,
    ) -> None:
        """``work`` returns a result for each order, in their order, or stores nothing and raises.

        After an error each member of the group is tried by itself, in its own thread, unless the
        database is away, or nobody knows what was stored. A group has up to ``max_orders``
        orders, and up to ``max_size`` of what callers say their orders weigh, unless one alone has
        more. Nobody waits longer than ``max_wait_s`` for those before it.
        """
        self._work = work
        self._max_orders = max_orders
        self._max_size = max_size
        self._max_wait_s = max_wait_s
        self._lock = threading.Lock()
        self._has_leader = False
        self._waiting: deque[_Waiter[Order, Result]] = deque()

    def run(self, order: Order, size: int) -> Result:
        """The result of ``order``. Raises what its work raised; LeaderLost; OperationalError where
        those before it took too long, and then nothing of it is stored.
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
        """Until it is called. Raises OperationalError where nobody has begun with it in time."""
        if waiter.wakeup.acquire(timeout=self._max_wait_s):
            return
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                raise OperationalError(raw.LOST, "The database does not answer those before.")
        waiter.wakeup.acquire()  # it is being stored, or leads: that has an end of its own

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
                # Each raises its own: a traceback belongs to one thread.
                waiter.failure = copy.copy(error)
        except BaseException:
            for waiter in group[1:]:
                waiter.failure = LeaderLost(LeaderLost.__doc__)
            raise
        finally:
            # First, so that the next group is on its way while this one is woken.
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
