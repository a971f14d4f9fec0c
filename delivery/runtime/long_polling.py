"""Long polling: receivers wait for their consumer's next message without a thread and a query.

A receiver that waits is an entry in the queue of its consumer. A datagram wakes the first one, from
whoever made something due (wake.py). That is a hint: one query a second for all queues together
finds what nobody told of, and when each consumer has something next, which is a timer from then on.
"""

import heapq
import itertools
import logging
import os
import selectors
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import Error as DatabaseFailure
from django.db import connection

from channels_app import clock
from channels_app.config_cache import config_cache
from delivery import metrics
from delivery.conf import conf
from delivery.runtime.wakeups import FORGET_S, Listener, WaitingReceivers, wakeup_sender
from delivery.steps import due_times

logger = logging.getLogger(__name__)

MIN_SCAN_INTERVAL_S = 1.0
"""Between two queries for what is due, or as long as pumps let pass (``HOOKSTATION_POLL_MS``)."""
EARLY_SCAN = 0.2
"""Of that time must be over when a consumer's first receiver wants to know what comes next."""
REGISTER_INTERVAL_S = 1.0
"""How often pumps are told whose receivers wait here: one that has just started must hear it."""
MAX_REGISTERED = 10_000
"""Consumers of whom is remembered that pumps were told."""
MAX_TOLD = 50
"""Messages that another web process is told of; a datagram has room for them."""
WOKEN_TOGETHER = 2
"""By one that left something to others: so each of many messages finds a receiver soon."""

_number = attrgetter("number")


class Cause(StrEnum):
    """Why a receiver was resumed."""

    ACCEPTED = "accepted"
    """Messages were stored that nobody has fanned out yet (`WaitingReceiver.wakeup`)."""
    WAKEUP = "wakeup"
    """A datagram came."""
    TIMER = "timer"
    """What was known to become due then."""
    SCAN = "scan"
    """The query found something that nobody had told of."""
    NEXT = "next"
    """Another receiver left something."""
    OVER = "over"
    """Its time is over, or its consumer or this process is."""


class Wakeup(NamedTuple):
    """New messages of one channel."""

    channel_id: int
    priority: int
    message_ids: Collection[int]


NOT_YET = frozenset({Cause.WAKEUP, Cause.TIMER})
"""Who was resumed so and found nothing may have been told of what is due in a moment."""


@dataclass(slots=True, eq=False)
class WaitingReceiver:
    """One call that waits, from its arrival to its answer."""

    consumer_id: int
    deadline: float
    """In `time.monotonic`."""
    resume: Callable[[], object]
    """Called in the thread of the queues, which it must not hold up; the receiver waits no more."""
    channel_id: int | None = None
    """Whose new messages it can take before they are fanned out; None: it takes deliveries alone.
    """
    cause: Cause | None = None
    """Why it was resumed last."""
    wakeup: Wakeup | None = None
    """Those that it was resumed for, until it has looked."""
    number: int = field(default_factory=itertools.count().__next__)
    """Its place among all: first come, first served."""


class _Queue:
    """Those who wait for one consumer, by age."""

    __slots__ = ("channel_id", "is_woken", "looking", "waiting")

    def __init__(self) -> None:
        self.channel_id = 0
        """Whose new messages its receivers take, if they do."""
        self.waiting: list[WaitingReceiver] = []
        self.looking = 0
        """How many ask the tables just now, and wait unless they find something."""
        self.is_woken = False
        """A wake-up came that none of those who wait could take: who looks looks again."""


class LongPolls:
    """All receivers of this process that wait, and the thread that wakes them.

    A receiver enters, looks, and then waits or leaves. Whoever is woken looks, and does the same.
    """

    def __init__(self) -> None:
        self.is_over = False
        """This process was told to stop: nobody waits any more."""
        self._lock = threading.Lock()
        self._queues: dict[int, _Queue] = {}
        self._taking: dict[int, int] = {}
        """Consumers whose receivers take new messages, by channel."""
        self._elsewhere = WaitingReceivers()
        """In other web processes, for these channels' messages."""
        self._deadlines: list[tuple[float, int, int]] = []
        """A heap of deadline, consumer and number, also of those who left earlier."""
        self._timers: dict[int, float] = {}
        self._registered: dict[int, float] = {}
        self._scanned_at = float("-inf")
        self._scan_at = float("inf")
        self._asleep_until = float("-inf")
        self._listener: Listener | None = None
        self._poked, self._poke = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self) -> str:
        """Begin to listen, unless that was done; the address to which wake-ups are sent."""
        with self._lock:
            if self._listener is None:
                self._listener = Listener()
                threading.Thread(target=self._run, name="long polls", daemon=True).start()
        return self._listener.address

    def stop(self) -> None:
        """Resume all who wait, and let nobody wait any more."""
        self.is_over = True
        with self._lock:
            resumed = [
                one
                for key, queue in self._queues.items()
                for one in self._popped(key, range(len(queue.waiting)), Cause.OVER)
            ]
        _resume(resumed)

    def is_over_for(self, receiver: WaitingReceiver) -> bool:
        """Whether it has to be answered now, whatever there is."""
        return self.is_over or time.monotonic() >= receiver.deadline

    def enter(self, consumer_id: int) -> None:
        """A receiver is about to look: from here on it misses nothing that becomes due."""
        self.start()
        ticks = time.monotonic()
        with self._lock:
            self._queues.setdefault(consumer_id, _Queue()).looking += 1
            registered_at = self._registered.get(consumer_id, float("-inf"))
        if ticks - registered_at > FORGET_S / 2:
            self._register([consumer_id])

    def leave(self, consumer_id: int, *, is_more: bool = False) -> None:
        """It looks no more; with ``is_more`` it left something, which the next ones look for."""
        with self._lock:
            queue = self._queues[consumer_id]
            queue.looking -= 1
            count = WOKEN_TOGETHER if is_more else 0
            if queue.is_woken and queue.waiting:
                queue.is_woken, count = False, max(count, 1)
            resumed = self._popped(consumer_id, range(count), Cause.NEXT)
            if not (queue.looking or queue.waiting):
                del self._queues[consumer_id]
                if self._taking.get(queue.channel_id) == consumer_id:
                    del self._taking[queue.channel_id]
        _resume(resumed)

    def wait(self, receiver: WaitingReceiver) -> bool:
        """Let one wait that found nothing; False if it shall look again, or leave."""
        with self._lock:
            queue = self._queues[receiver.consumer_id]
            if self.is_over or queue.is_woken:
                queue.is_woken = False
                return False
            queue.looking -= 1
            if receiver.channel_id is not None:
                queue.channel_id = receiver.channel_id
                self._taking[receiver.channel_id] = receiver.consumer_id
            if not queue.waiting or receiver.cause in NOT_YET:
                early_s = EARLY_SCAN * _scan_interval_s()
                self._scan_at = min(self._scan_at, self._scanned_at + early_s)
            insort(queue.waiting, receiver, key=_number)
            metrics.WAITING.inc()
            entry = receiver.deadline, receiver.consumer_id, receiver.number
            heapq.heappush(self._deadlines, entry)
            is_late = min(self._scan_at, receiver.deadline) < self._asleep_until
        if is_late:
            self._interrupt()
        return True

    def pass_on(self, receiver: WaitingReceiver) -> None:
        """What is due is not for this one: let the next one in its queue look."""
        with self._lock:
            waiting = self._queues[receiver.consumer_id].waiting
            place = bisect_right(waiting, receiver.number, key=_number)
            resumed = self._popped(receiver.consumer_id, [place], Cause.NEXT)
        _resume(resumed)

    def wake(self, consumer_ids: Iterable[int], cause: Cause = Cause.WAKEUP) -> None:
        """Something of these consumers is due: let the first who waits for each look."""
        resumed = []
        with self._lock:
            for consumer_id in consumer_ids:
                self._timers.pop(consumer_id, None)
                if (queue := self._queues.get(consumer_id)) is None:
                    continue
                if queue.waiting:
                    resumed += self._popped(consumer_id, [0], cause)
                else:
                    queue.is_woken = True
        _resume(resumed)

    def give(self, wakeup: Wakeup) -> bool:
        """Let the first who waits for the channel's messages take these; False if nobody does."""
        with self._lock:
            consumer_id = self._taking.get(wakeup.channel_id)
            queue = self._queues.get(consumer_id) if consumer_id is not None else None
            if consumer_id is None or queue is None or not queue.waiting:
                return False
            if queue.waiting[0].channel_id != wakeup.channel_id:
                return False
            resumed = self._popped(consumer_id, [0], Cause.ACCEPTED)
            resumed[0].wakeup = wakeup
        _resume(resumed)
        return True

    def give_elsewhere(self, wakeup: Wakeup) -> bool:
        """The same where receivers of another web process wait."""
        if len(wakeup.message_ids) > MAX_TOLD:
            return False
        for address in self._elsewhere.of([wakeup.channel_id]):
            wakeup_sender.take(address, wakeup.channel_id, wakeup.priority, wakeup.message_ids)
            return True
        return False

    def waiting(self) -> dict[int, int]:
        """How many wait for each consumer."""
        with self._lock:
            counts = {key: len(queue.waiting) for key, queue in self._queues.items()}
        return {key: count for key, count in counts.items() if count}

    def _popped(
        self, consumer_id: int, places: Collection[int], cause: Cause
    ) -> list[WaitingReceiver]:
        """Take these out of their queue, to look; with the lock."""
        queue = self._queues[consumer_id]
        some = [queue.waiting[place] for place in places if place < len(queue.waiting)]
        for one in some:
            one.cause = cause
        if some:
            gone = set(some)
            queue.waiting = [one for one in queue.waiting if one not in gone]
            queue.looking += len(some)
            metrics.WAITING.dec(len(some))
        return some

    def _run(self) -> None:
        assert self._listener is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener.socket, selectors.EVENT_READ)
            selector.register(self._poked, selectors.EVENT_READ)
            while True:
                selector.select(self._rest_s())
                try:
                    self._round(self._listener)
                except DatabaseFailure:
                    connection.close()  # the next look asks again
                except Exception:
                    logger.exception("receivers that wait could not be looked after")

    def _round(self, listener: Listener) -> None:
        self._asleep_until = float("-inf")
        while _drained(self._poked):
            pass
        hints = listener.hear()
        self.wake(hints.consumer_ids)
        for channel_id, priority, message_ids in hints.take:
            if not self.give(wakeup := Wakeup(channel_id, priority, message_ids)):
                wakeup_sender.accepted(*wakeup)
        own = listener.socket.getsockname()[:2]
        self._elsewhere.note({at: ids for at, ids in hints.taking.items() if at != own})
        ticks = time.monotonic()
        self._end(ticks)
        self.wake([key for key, at in list(self._timers.items()) if at <= ticks], Cause.TIMER)
        waiting = self.waiting()
        if not waiting:
            if self._scan_at < float("inf"):
                self._scan_at = float("inf")
                connection.close()  # for nobody knows how long
            return
        unknown = [
            key
            for key in waiting
            if ticks - self._registered.get(key, float("-inf")) >= REGISTER_INTERVAL_S
        ]
        is_scan = ticks >= self._scan_at
        if unknown or is_scan:
            self._register(list(waiting), asks=is_scan)
        if is_scan:
            self._scan(waiting)

    def _rest_s(self) -> float | None:
        """Seconds until the thread has something to do; None: until somebody waits."""
        ticks = time.monotonic()
        with self._lock:
            if not any(queue.waiting for queue in self._queues.values()):
                self._asleep_until = float("inf")
                return None
            until = min(
                self._scan_at,
                ticks + REGISTER_INTERVAL_S,
                *(entry[0] for entry in self._deadlines[:1]),
                *self._timers.values(),
            )
            self._asleep_until = until
        return max(0.0, until - ticks)

    def _interrupt(self) -> None:
        try:
            os.write(self._poke, b"\0")
        except BlockingIOError:
            return  # it has enough to wake up from

    def _end(self, ticks: float) -> None:
        """Resume those whose time is over."""
        resumed = []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= ticks:
                _, consumer_id, number = heapq.heappop(self._deadlines)
                if (queue := self._queues.get(consumer_id)) is None:
                    continue
                place = bisect_left(queue.waiting, number, key=_number)
                if place < len(queue.waiting) and queue.waiting[place].number == number:
                    resumed += self._popped(consumer_id, [place], Cause.OVER)
        _resume(resumed)

    def _scan(self, waiting: Collection[int]) -> None:
        """Ask once for all of them what is due, and what comes before the next time."""
        self._scanned_at = time.monotonic()
        self._scan_at = self._scanned_at + _scan_interval_s()
        views = config_cache.consumers()
        gone = [key for key in waiting if key not in views or views[key].mode != "pull"]
        with self._lock:
            resumed = [
                one
                for key in gone
                if key in self._queues
                for one in self._popped(key, range(len(self._queues[key].waiting)), Cause.OVER)
            ]
        _resume(resumed)
        # Of a halted one much may be due, and nobody may have it.
        able = [key for key in waiting if key in views and not views[key].halted]
        now, due = clock.now(), due_times.next_due(able)
        ticks = time.monotonic()
        later = {key: ticks + (at - now).total_seconds() for key, at in due.items() if at > now}
        self._timers = {key: at for key, at in later.items() if at <= self._scan_at}
        self.wake([key for key, at in due.items() if at <= now], Cause.SCAN)

    def _register(self, consumer_ids: Collection[int], *, asks: bool = True) -> None:
        """Tell pumps, so that their next fan-out for one of these is told here.

        Which pumps there are is in a table, which is not asked without ``asks``.
        """
        if not conf().wake or self._listener is None:
            return
        ticks = time.monotonic()
        with self._lock:
            if len(self._registered) > MAX_REGISTERED:
                self._registered.clear()
            self._registered |= dict.fromkeys(consumer_ids, ticks)
        try:
            wakeup_sender.waiting(self._listener, consumer_ids, asks=asks)
            with self._lock:
                taking = [key for key, one in self._taking.items() if self._queues[one].waiting]
            if taking:
                wakeup_sender.taking(self._listener, taking)
        except DatabaseFailure:
            return  # a hint: without it the query finds what comes


long_polls = LongPolls()


def on_message_accepted(
    sender: Any, *, channel_id: int, priority: int, message_ids: Sequence[int], **_: Any
) -> None:
    """Receiver of channels_app.signals.message_accepted."""
    if not conf().wake:
        return
    wakeup = Wakeup(channel_id, priority, message_ids)
    try:
        if not (long_polls.give(wakeup) or long_polls.give_elsewhere(wakeup)):
            wakeup_sender.accepted(*wakeup)
    except DatabaseFailure:
        return  # the message is stored; a hint is not worth an error to its producer


def _scan_interval_s() -> float:
    return max(MIN_SCAN_INTERVAL_S, conf().poll_s)


def _resume(receivers: Iterable[WaitingReceiver]) -> None:
    for one in receivers:
        one.resume()


def _drained(end: int) -> bytes:
    try:
        return os.read(end, 4096)
    except BlockingIOError:
        return b""
