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


class _Seat(Generic[Order, Result]):
    """One caller's order and its outcome."""

    __slots__ = ("called", "failure", "leads", "order", "result", "size")

    def __init__(self, order: Order, size: int) -> None:
        self.order = order
        self.size = size
        self.leads = False
        self.called = threading.Lock()
        """Held until there is a result or a failure, or until the caller becomes the leader."""
        self.called.acquire()
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
        most: int,
        most_size: int,
        patience_s: float = transactions.REQUEST_TIMEOUT_S,
    ) -> None:
        """``work`` returns one result per order, in their sequence, or stores nothing and raises.

        After an error each member of the group retries alone, in its own thread, unless the
        database is unavailable or it is unknown what was stored. A group has at most ``most``
        orders with a total size of at most ``most_size``, in the callers' unit; a larger order is
        stored alone. A caller waits at most ``patience_s`` seconds for the groups before it.
        """
        self._work = work
        self._most = most
        self._most_size = most_size
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._has_leader = False
        self._waiting: deque[_Seat[Order, Result]] = deque()

    def run(self, order: Order, size: int) -> Result:
        """Return the result of ``order``.

        Raises what ``work`` raises, LeaderLost, and OperationalError if the groups before it took
        too long; in that last case nothing of the order is stored.
        """
        seat: _Seat[Order, Result] = _Seat(order, size)
        with self._lock:
            if self._has_leader:
                self._waiting.append(seat)
            else:
                self._has_leader = seat.leads = True
        if not seat.leads:
            self._wait(seat)
        if seat.leads:
            self._lead(seat)
        if seat.failure is None:
            return seat.result
        if isinstance(seat.failure, LeaderLost) or transactions.is_away(seat.failure):
            raise seat.failure
        (result,) = self._work([order])
        return result

    def _wait(self, seat: _Seat[Order, Result]) -> None:
        """Wait until the seat is called.

        Raises OperationalError if it is still queued after ``patience_s`` seconds.
        """
        if seat.called.acquire(timeout=self._patience_s):
            return
        with self._lock:
            if seat in self._waiting:
                self._waiting.remove(seat)
                raise OperationalError(raw.LOST, "The database does not answer those before.")
        seat.called.acquire()  # its group is being stored, or it leads: neither waits without limit

    def _lead(self, leader: _Seat[Order, Result]) -> None:
        group = [leader]
        try:
            group += self._company(leader.size)
            for seat, result in zip(group, self._work([seat.order for seat in group]), strict=True):
                seat.result = result
        except Exception as error:
            if len(group) == 1:
                raise
            leader.failure = error
            for seat in group[1:]:
                # Each thread raises a copy of its own, since raising sets the traceback.
                seat.failure = copy.copy(error)
        except BaseException:
            for seat in group[1:]:
                seat.failure = LeaderLost(LeaderLost.__doc__)
            raise
        finally:
            # First, so that the next group starts while this group's threads are woken.
            self._hand_over()
            for seat in group[1:]:
                seat.called.release()

    def _company(self, size: int) -> list[_Seat[Order, Result]]:
        company: list[_Seat[Order, Result]] = []
        with self._lock:
            while self._waiting and len(company) + 1 < self._most:
                size += self._waiting[0].size
                if size > self._most_size:
                    break
                company.append(self._waiting.popleft())
        return company

    def _hand_over(self) -> None:
        with self._lock:
            if not self._waiting:
                self._has_leader = False
                return
            heir = self._waiting.popleft()
            heir.leads = True
        heir.called.release()
