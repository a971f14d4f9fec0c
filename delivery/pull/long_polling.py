"""Let receivers wait for their consumer's next message without a thread or a query each.

A waiting receiver is an entry in its consumer's queue. A datagram from the process that made
something due wakes the first one (wakeups.py). That is a hint: once a second one query for all
queues finds deliveries without a datagram, and when each consumer's next one is due, for which a
timer is set.
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

from channels_app.database import clock
from channels_app.registry.cache import config_cache
from delivery import metrics
from delivery.conf import conf
from delivery.processes.wakeups import FORGET_S, Listener, WaitingReceivers, wakeup_sender
from delivery.queue import due_times

logger = logging.getLogger(__name__)

MIN_SCAN_INTERVAL_S = 1.0
"""Seconds between two queries for due deliveries; ``HOOKSTATION_POLL_MS`` if that is longer."""
EARLY_SCAN = 0.2
"""Share of that time that must pass before a consumer's first receiver causes an early query."""
REGISTER_INTERVAL_S = 1.0
"""How often pumps are told whose receivers wait here, so that new pumps know it soon."""
MAX_REGISTERED = 10_000
"""Consumers for which this process remembers that it has told the pumps."""
MAX_SENT_IDS = 50
"""Most message ids passed to another web process; a datagram has room for them."""
WOKEN_TOGETHER = 2
"""Receivers woken by one that left something, so that many messages find receivers quickly."""

_number = attrgetter("number")


class Cause(StrEnum):
    """Why a receiver was resumed."""

    ACCEPTED = "accepted"
    """Messages were stored that are not fanned out yet (`WaitingReceiver.wakeup`)."""
    WAKEUP = "wakeup"
    """A datagram arrived."""
    TIMER = "timer"
    """A known delivery became due."""
    SCAN = "scan"
    """The periodic query found something without a datagram."""
    NEXT = "next"
    """Another receiver left something."""
    OVER = "over"
    """Its time is over, its consumer is gone, or this process stops."""


class Wakeup(NamedTuple):
    """New messages of one channel."""

    channel_id: int
    priority: int
    message_ids: Collection[int]


NOT_YET = frozenset({Cause.WAKEUP, Cause.TIMER})
"""Causes after which a receiver that finds nothing may have been woken a moment too early."""


@dataclass(slots=True, eq=False)
class WaitingReceiver:
    """One waiting request, from its arrival to its response."""

    consumer_id: int
    deadline: float
    """In `time.monotonic`."""
    resume: Callable[[], object]
    """Called in the queues' thread, which it must not block; the receiver no longer waits then."""
    channel_id: int | None = None
    """Channel whose new messages it can take before their fan-out; None: only deliveries."""
    cause: Cause | None = None
    """Why it was last resumed."""
    wakeup: Wakeup | None = None
    """The messages that it was resumed for, until it has looked for them."""
    number: int = field(default_factory=itertools.count().__next__)
    """Its position among all receivers: first come, first served."""


class _Queue:
    """The receivers waiting for one consumer, oldest first."""

    __slots__ = ("channel_id", "is_woken", "receiving", "waiting")

    def __init__(self) -> None:
        self.channel_id = 0
        """Channel whose new messages its receivers take, if any."""
        self.waiting: list[WaitingReceiver] = []
        self.receiving = 0
        """How many are querying just now, and wait unless they find something."""
        self.is_woken = False
        """Whether a wake-up came that no waiting receiver could take; a querying one must
        repeat."""


class LongPolls:
    """All waiting receivers of this process, and the thread that wakes them.

    A receiver enters, queries, and then waits or leaves. A woken receiver does the same.
    """

    def __init__(self) -> None:
        self.is_over = False
        """Whether this process was told to stop; then no receiver waits any more."""
        self._lock = threading.Lock()
        self._queues: dict[int, _Queue] = {}
        self._taking: dict[int, int] = {}
        """Consumers whose receivers take new messages, by channel."""
        self._elsewhere = WaitingReceivers()
        """Receivers waiting in other web processes, by channel."""
        self._deadlines: list[tuple[float, int, int]] = []
        """A heap of deadline, consumer and number; includes receivers that left earlier."""
        self._timers: dict[int, float] = {}
        self._registered: dict[int, float] = {}
        self._scanned_at = float("-inf")
        self._scan_at = float("inf")
        self._asleep_until = float("-inf")
        self._listener: Listener | None = None
        self._wake_read_fd = self._wake_write_fd = -1

    def start(self) -> str:
        """Begin to listen unless done already; return the address for wake-ups."""
        with self._lock:
            if self._listener is None:
                # Not earlier: processes that are forked from one must not share the pipe.
                self._wake_read_fd, self._wake_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                self._listener = Listener()
                threading.Thread(target=self._run, name="long polls", daemon=True).start()
        return self._listener.address

    def stop(self) -> None:
        """Resume all receivers, and let none wait any more."""
        self.is_over = True
        with self._lock:
            resumed = [
                receiver
                for key, queue in self._queues.items()
                for receiver in self._popped(key, range(len(queue.waiting)), Cause.OVER)
            ]
        _resume(resumed)

    def is_over_for(self, receiver: WaitingReceiver) -> bool:
        """Whether it must be answered now in any case."""
        return self.is_over or time.monotonic() >= receiver.deadline

    def enter(self, consumer_id: int) -> None:
        """Register a receiver before it queries, so that it misses nothing that becomes due."""
        self.start()
        ticks = time.monotonic()
        with self._lock:
            self._queues.setdefault(consumer_id, _Queue()).receiving += 1
            registered_at = self._registered.get(consumer_id, float("-inf"))
        if ticks - registered_at > FORGET_S / 2:
            self._register([consumer_id])

    def leave(self, consumer_id: int, *, is_more: bool = False) -> None:
        """Unregister a receiver after its query; ``is_more`` wakes others for what it left."""
        with self._lock:
            queue = self._queues[consumer_id]
            queue.receiving -= 1
            count = WOKEN_TOGETHER if is_more else 0
            if queue.is_woken and queue.waiting:
                queue.is_woken, count = False, max(count, 1)
            resumed = self._popped(consumer_id, range(count), Cause.NEXT)
            if not (queue.receiving or queue.waiting):
                del self._queues[consumer_id]
                if self._taking.get(queue.channel_id) == consumer_id:
                    del self._taking[queue.channel_id]
        _resume(resumed)

    def wait(self, receiver: WaitingReceiver) -> bool:
        """Let a receiver wait that found nothing; return False if it must query again or leave."""
        with self._lock:
            queue = self._queues[receiver.consumer_id]
            if self.is_over or queue.is_woken:
                queue.is_woken = False
                return False
            queue.receiving -= 1
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
        """Wake the next receiver of the queue, because the due deliveries are not for this one."""
        with self._lock:
            waiting = self._queues[receiver.consumer_id].waiting
            place = bisect_right(waiting, receiver.number, key=_number)
            resumed = self._popped(receiver.consumer_id, [place], Cause.NEXT)
        _resume(resumed)

    def wake(self, consumer_ids: Iterable[int], cause: Cause = Cause.WAKEUP) -> None:
        """Wake the first receiver of each consumer, because something is due."""
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
        """Give new messages to the channel's first waiting receiver; False if there is none."""
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
        """Give new messages to a receiver of another web process; False if none waits."""
        if len(wakeup.message_ids) > MAX_SENT_IDS:
            return False
        for address in self._elsewhere.of([wakeup.channel_id]):
            wakeup_sender.take(address, wakeup.channel_id, wakeup.priority, wakeup.message_ids)
            return True
        return False

    def waiting(self) -> dict[int, int]:
        """Return how many receivers wait for each consumer."""
        with self._lock:
            counts = {key: len(queue.waiting) for key, queue in self._queues.items()}
        return {key: count for key, count in counts.items() if count}

    def _popped(
        self, consumer_id: int, places: Collection[int], cause: Cause
    ) -> list[WaitingReceiver]:
        """Take these receivers out of their queue to query. The caller holds the lock."""
        queue = self._queues[consumer_id]
        receivers = [queue.waiting[place] for place in places if place < len(queue.waiting)]
        for receiver in receivers:
            receiver.cause = cause
        if receivers:
            gone = set(receivers)
            queue.waiting = [receiver for receiver in queue.waiting if receiver not in gone]
            queue.receiving += len(receivers)
            metrics.WAITING.dec(len(receivers))
        return receivers

    def _run(self) -> None:
        assert self._listener is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener.socket, selectors.EVENT_READ)
            selector.register(self._wake_read_fd, selectors.EVENT_READ)
            while True:
                selector.select(self._rest_s())
                try:
                    self._round(self._listener)
                except DatabaseFailure:
                    connection.close()  # the next query opens a new one
                except Exception:
                    logger.exception("waiting receive calls could not be served")

    def _round(self, listener: Listener) -> None:
        self._asleep_until = float("-inf")
        while _drained(self._wake_read_fd):
            pass
        hints = listener.read()
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
                connection.close()  # the pause may be long
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
        """Return the seconds until the thread has work; None: until a receiver waits."""
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
        if self._wake_write_fd < 0:
            return  # no thread yet
        try:
            os.write(self._wake_write_fd, b"\0")
        except BlockingIOError:
            return  # a full pipe wakes the thread anyway

    def _end(self, ticks: float) -> None:
        """Resume receivers whose time is over."""
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
        """Query once for all consumers what is due now, and what before the next query."""
        self._scanned_at = time.monotonic()
        self._scan_at = self._scanned_at + _scan_interval_s()
        consumers = config_cache.consumers()
        gone = [key for key in waiting if key not in consumers or consumers[key].mode != "pull"]
        with self._lock:
            resumed = [
                receiver
                for key in gone
                if key in self._queues
                for receiver in self._popped(key, range(len(self._queues[key].waiting)), Cause.OVER)
            ]
        _resume(resumed)
        # A halted consumer may have due deliveries, but nothing may receive them.
        able = [key for key in waiting if key in consumers and not consumers[key].halted]
        now, due = clock.now(), due_times.next_due(able)
        ticks = time.monotonic()
        later = {key: ticks + (at - now).total_seconds() for key, at in due.items() if at > now}
        self._timers = {key: at for key, at in later.items() if at <= self._scan_at}
        self.wake([key for key, at in due.items() if at <= now], Cause.SCAN)

    def _register(self, consumer_ids: Collection[int], *, asks: bool = True) -> None:
        """Tell pumps whose receivers wait here, so that the next fan-out notifies this process.

        Without ``asks`` only known pumps are told, without a query.
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
                taking = [
                    key
                    for key, consumer_id in self._taking.items()
                    if self._queues[consumer_id].waiting
                ]
            if taking:
                wakeup_sender.taking(self._listener, taking)
        except DatabaseFailure:
            return  # only a hint: the query finds deliveries without it


long_polls = LongPolls()


def on_message_accepted(
    sender: Any, *, channel_id: int, priority: int, message_ids: Sequence[int], **_: Any
) -> None:
    """Handle channels_app.signals.message_accepted."""
    if not conf().wake:
        return
    wakeup = Wakeup(channel_id, priority, message_ids)
    try:
        if not (long_polls.give(wakeup) or long_polls.give_elsewhere(wakeup)):
            wakeup_sender.accepted(*wakeup)
    except DatabaseFailure:
        return  # the message is stored; a failed hint must not be an error for the producer


def _scan_interval_s() -> float:
    return max(MIN_SCAN_INTERVAL_S, conf().poll_ms / 1000)


def _resume(receivers: Iterable[WaitingReceiver]) -> None:
    for receiver in receivers:
        receiver.resume()


def _drained(end: int) -> bytes:
    try:
        return os.read(end, 4096)
    except BlockingIOError:
        return b""
