"""Decide which consumers a pump serves, and which of them have something to claim."""

import heapq
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from channels_app.conf import keyring
from channels_app.database import clock, raw
from channels_app.models import ConfigVersion
from channels_app.registry import data_encryption
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.conf import conf
from delivery.core import breaker, outcome, recipients
from delivery.core.breaker import Circuit
from delivery.core.health_status import DISABLE_FAILURES
from delivery.core.lifecycle import ClaimedDelivery
from delivery.core.outcome import Outcome
from delivery.core.recipients import LEVELS, ConsumerShare, KeyHolder
from delivery.health import consumer_health
from delivery.health.consumer_health import HealthFinding
from delivery.processes import registration
from delivery.pump import confirmation
from delivery.pump.consumer_queue import LEAD, QUEUE_STATUSES, ConsumerQueue, QueueStatus
from delivery.queue import due_times, lease_rows
from delivery.transport import Response

logger = logging.getLogger(__name__)
MAX_SCANNED = 1000
"""Outdated entries that the heap may keep: a sleeping queue may be woken again and again."""
SCAN = 100
"""Most queues of one place that a check examines; with thousands it continues in turn."""

Admits = Callable[[QueueStatus, int], int]
"""Returns how many requests a queue of this status may open if so many are open already."""
SAVE_S = 5.0
"""Seconds for which ordinary changes of a consumer's health may stay unsaved."""
SUSPEND_S = 60.0
DISCOVER_SHARE = 20
"""Discovery of due rows takes at most 1/20 of a pump's time."""
DISCOVER_AT_ONCE = due_times.CONSUMERS_PER_QUERY
RECOUNT_S = 0.1
"""Seconds between two counts of the requests that former pumps have in flight."""
FOLLOW_POLL_S = 0.02
"""Seconds between two checks whether other pumps have applied the configuration."""

_NEVER_SENT = (Outcome.INTERRUPTED, Outcome.BODY_UNREADABLE, Outcome.INTEGRITY_ERROR)
"""Outcomes that say nothing about the consumer."""


class Pick(NamedTuple):
    """A queue that may claim now."""

    queue: ConsumerQueue
    level: int
    """Its highest due priority."""
    room: int
    """How many deliveries it may claim."""
    status: QueueStatus


class ReadyConsumers:
    """Queues with due deliveries, by priority and status, and queues that sleep until later.

    Among queues of one priority and status, the one that has waited longest is next.
    """

    def __init__(self, queues: Mapping[int, ConsumerQueue]) -> None:
        self._queues = queues
        self._changed: dict[int, ConsumerQueue] = {}
        """Queues that changed since the last check."""
        self._waiting: dict[tuple[int, QueueStatus], dict[int, ConsumerQueue]] = {
            (level, status): {} for level in LEVELS for status in QUEUE_STATUSES
        }
        self._places: dict[int, tuple[int, QueueStatus]] = {}
        self._slow: set[int] = set()
        """Slow consumers that have due deliveries, but sleep because they are at a limit."""
        self._asleep: list[tuple[float, int]] = []
        """A heap. An entry that differs from `_until` is outdated: an earlier time replaced it."""
        self._until: dict[int, float] = {}
        self._more = False
        """Whether the last check left queues that could have claimed."""

    def note(self, queue: ConsumerQueue) -> None:
        """Must be called for every change that may let this queue claim, or claim sooner."""
        consumer_id = queue.consumer.id
        if self._queues.get(consumer_id) is queue:
            self._changed[consumer_id] = queue

    def forget(self, consumer_id: int) -> None:
        """Remove a consumer that this pump no longer serves."""
        self._changed.pop(consumer_id, None)
        self._slow.discard(consumer_id)
        self._until.pop(consumer_id, None)
        self._leave(consumer_id)

    @property
    def waiting_count(self) -> int:
        """Number of queues that had due deliveries at the last check, and may claim given room."""
        return len(self._places)

    def has_slow(self) -> bool:
        """Whether a consumer that does not answer promptly has due deliveries."""
        return bool(self._slow) or any(self._waiting[level, QueueStatus.OTHER] for level in LEVELS)

    def top(self) -> int:
        """Return the highest priority among those; 0 when there are none."""
        return next((level for (level, _), place in self._waiting.items() if place), 0)

    def gather(
        self, now: datetime, ticks: float, admits: Admits, most: int, *, from_below: bool = False
    ) -> list[Pick]:
        """Return up to ``most`` queues that may claim, most urgent first.

        ``from_below`` takes half of them from the other end, for the starvation guard. A queue that
        may not claim for its own reasons sleeps until that changes.
        """
        self._wake(now, ticks)
        picks: list[Pick] = []
        self._more = False
        if from_below:
            for level in reversed(LEVELS):
                self._gather(level, now, ticks, admits, most // 2, picks)
        picked = {pick.queue.consumer.id for pick in picks}
        for level in LEVELS:
            self._gather(level, now, ticks, admits, most, picks, picked)
        self._more = self._more and bool(picks)
        return sorted(picks, key=lambda pick: (-pick.level, pick.status)) if picked else picks

    def wake_at(self) -> float | None:
        """Return when to check again, in Unix seconds; None if only an event changes anything."""
        if self._more or self._changed:
            return 0.0
        return self._asleep[0][0] if self._asleep else None

    def _gather(
        self,
        level: int,
        now: datetime,
        ticks: float,
        admits: Admits,
        most: int,
        picks: list[Pick],
        picked: frozenset[int] | set[int] = frozenset(),
    ) -> None:
        for status in QUEUE_STATUSES:
            place = self._waiting[level, status]
            if not place or not admits(status, 0):
                continue
            for queue in list(islice(place.values(), SCAN)):
                if len(picks) >= most:
                    self._more = True
                    return
                consumer_id = queue.consumer.id
                if consumer_id in picked:
                    continue
                if queue.place(now, ticks) != (level, status):
                    self._changed[consumer_id] = queue  # its status changed: sort it in again
                    self._leave(consumer_id)
                    continue
                if (capacity := queue.capacity(now)) <= 0:
                    if status is QueueStatus.OTHER:
                        self._slow.add(consumer_id)
                    self._sleep(queue, queue.wake_at())
                    continue
                room = min(capacity, admits(status, queue.in_flight))
                place[consumer_id] = place.pop(consumer_id)  # behind those that still wait
                if room > 0:
                    picks.append(Pick(queue, level, room, status))
            self._more = self._more or len(place) > SCAN

    def _wake(self, now: datetime, ticks: float) -> None:
        instant = now.timestamp()
        while self._asleep and self._asleep[0][0] <= instant:
            at, consumer_id = heapq.heappop(self._asleep)
            if self._until.get(consumer_id) == at:
                del self._until[consumer_id]
                if consumer_id in self._queues:
                    self._changed[consumer_id] = self._queues[consumer_id]
        noted, self._changed = self._changed, {}
        self._slow.difference_update(noted)
        for consumer_id, queue in noted.items():
            place = queue.place(now, ticks)
            if place is None:
                self._sleep(queue, queue.wake_at())
                continue
            if place != self._places.get(consumer_id):
                self._leave(consumer_id)
                self._places[consumer_id] = place
                self._waiting[place][consumer_id] = queue
            # A more urgent delivery that is due later changes its place at that time.
            level, _ = place
            if rises := [due for priority, due in queue.due.items() if priority > level]:
                self._wake_later(consumer_id, (min(rises) - LEAD).timestamp())

    def _sleep(self, queue: ConsumerQueue, at: float | None) -> None:
        self._leave(queue.consumer.id)
        if at is not None:
            self._wake_later(queue.consumer.id, at)

    def _wake_later(self, consumer_id: int, at: float) -> None:
        if at < self._until.get(consumer_id, float("inf")):
            self._until[consumer_id] = at
            heapq.heappush(self._asleep, (at, consumer_id))
            if len(self._asleep) > 2 * len(self._until) + MAX_SCANNED:
                self._asleep = [(at, consumer_id) for consumer_id, at in self._until.items()]
                heapq.heapify(self._asleep)

    def _leave(self, consumer_id: int) -> None:
        place = self._places.pop(consumer_id, None)
        if place is not None:
            del self._waiting[place][consumer_id]


class Assignment:
    """Queues of the consumers that this pump owns, which core.recipients decides."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.queues: dict[int, ConsumerQueue] = {}
        self.ready_consumers = ReadyConsumers(self.queues)
        self.number = -1
        """Configuration version that the queues have."""
        self._former: dict[int, ConsumerQueue] = {}
        """Queues given up with open requests; reused, with their counts, if the consumer
        returns."""
        self._moved: set[int] = set()
        """Consumers for which another pump may still have requests in flight."""
        self._recount_at = 0.0
        self._awaited_until = 0.0
        """Until when (`time.monotonic`) counting waits for pumps with old configuration."""
        self._all_consumers: Mapping[int, ConsumerConfig] = {}
        """All consumers at the last refresh, with their full limits."""
        self._basis: object = None
        self._members: set[int] = set()
        self._unsaved: dict[int, tuple[ConsumerQueue, Response]] = {}
        self._saved: dict[int, float] = {}
        self._unexamined: list[int] = []
        """Consumers not yet examined in this round of discovery."""
        self._pumps: list[KeyHolder] = []
        """All claiming pumps, from their rows at the last refresh."""
        self._missing: set[str] = set()
        self._published: set[str] = set()
        """The missing keys that are published to the other pumps."""

    def is_behind(self) -> bool:
        """Whether the configuration has changed since the last refresh."""
        return config_cache.refresh() != self.number

    def refresh(self) -> bool:
        """Apply changes of configuration and live pumps; return whether anything changed."""
        if self._published != self._missing:
            registration.lack(self.generation, self._missing)
            self._published = set(self._missing)
        # A pump without an address finishes what it has and claims nothing more.
        version, claimers = raw.read_all([(ConfigVersion.CURRENT, []), registration.claimers()])
        number = config_cache.refresh(number=ConfigVersion.of(version))
        me = KeyHolder(self.generation, keyring().ids, frozenset(self._missing))
        other_pumps = (KeyHolder.of(*row) for row in claimers)
        self._pumps = [me, *(pump for pump in other_pumps if pump.generation != self.generation)]
        members = recipients.able(self._pumps, data_encryption.encrypting_key_id())
        basis = (number, frozenset(members))
        if basis == self._basis:
            return False
        all_consumers = config_cache.consumers()
        shares = _shares(all_consumers.values(), members, self.generation)
        consumers = {key: _part(all_consumers[key], share) for key, share in shares.items()}
        for consumer_id in self.queues.keys() - consumers.keys():
            self._former[consumer_id] = self.queues.pop(consumer_id)
            self.ready_consumers.forget(consumer_id)
            self._saved.pop(consumer_id, None)  # save what is known for its next pump
        self._former = {key: queue for key, queue in self._former.items() if queue.in_flight}
        # These are examined first: nothing is known of their waiting deliveries.
        fresh = [
            key for key in consumers if key not in self.queues or self.queues[key].consumer.halted
        ]
        self._unexamined = [*fresh, *self._unexamined]
        ours = consumers.keys() - self.queues.keys()
        moved = ours | {key for key, queue in self.queues.items() if queue.share != shares[key]}
        circuits = consumer_health.load(ours)
        for consumer_id, consumer in consumers.items():
            self._adopt(consumer, shares[consumer_id], circuits.get(consumer_id, Circuit()))
        if members == self._members:
            # Consumers registered since the last refresh had no pump before.
            moved &= self._all_consumers.keys()
            if moved:
                self._awaited_until = time.monotonic() + confirmation.FENCE_S
        self._assume_moved(moved)
        self._all_consumers, self._members = all_consumers, members
        self._basis, self.number = basis, number
        self.recount()
        return True

    def miss(self, key_id: str) -> float:
        """Record a missing key; return the seconds until its deliveries may be claimed again.

        At the next refresh this pump's consumers move to pumps that have the key, if there are any.
        """
        if key_id not in self._missing:
            self._missing.add(key_id)
            logger.error(registration.MISSING, key_id)
        return registration.wait_s(key_id, self._pumps)

    def take_over(self) -> None:
        """Treat all own consumers as if another pump had served them until now."""
        self._assume_moved(self.queues)
        self.recount()

    def _assume_moved(self, consumer_ids: Iterable[int]) -> None:
        now = clock.now().timestamp()
        for consumer_id in consumer_ids:
            queue = self.queues[consumer_id]
            queue.elsewhere = queue.consumer.max_in_flight  # until it is counted
            if queue.consumer.rate:
                # Assume that the former pump has just used up the rate limit.
                queue.arrival = now + queue.consumer.rate.tolerance + queue.consumer.rate.interval
            self._moved.add(consumer_id)
            self._recount_at = 0.0

    @property
    def recount_s(self) -> float | None:
        """Seconds until `recount` has something to do; None if it has nothing."""
        return max(0.0, self._recount_at - time.monotonic()) if self._moved else None

    def recount(self) -> None:
        """Count requests that other pumps have in flight beyond their shares, until there are none.

        The share of a former pump is zero. If a configuration change reduced a pump's share, the
        count begins when that pump has applied the change: until then it may claim more.
        """
        if not self._moved or time.monotonic() < self._recount_at:
            return
        if time.monotonic() < self._awaited_until:
            if registration.behind(self.number).keys() - {self.generation}:
                self._recount_at = time.monotonic() + FOLLOW_POLL_S
                return
            self._awaited_until = 0.0
        moved = self._moved & self.queues.keys()
        held = lease_rows.elsewhere(moved, self.generation, clock.now())
        counts = {key: beyond for key in held if (beyond := self._beyond(key, held[key]))}
        circuits = consumer_health.load(moved)
        for consumer_id in moved:
            queue = self.queues[consumer_id]
            queue.elsewhere = counts.get(consumer_id, 0)
            if consumer_id not in self._unsaved:
                queue.circuit = queue.saved = circuits.get(consumer_id, Circuit())
            self.ready_consumers.note(queue)
        self._moved = set(counts)
        self._recount_at = time.monotonic() + RECOUNT_S

    def _beyond(self, consumer_id: int, held: Mapping[int, int]) -> int:
        share, total = (
            self.queues[consumer_id].share,
            self._all_consumers[consumer_id].max_in_flight,
        )
        return sum(max(0, count - share.of(total, pump)) for pump, count in held.items())

    def is_shared(self, consumer_id: int) -> bool:
        """Whether other pumps serve this consumer as well."""
        return not self.queues[consumer_id].share.is_all

    def consumer(self, consumer_id: int) -> ConsumerConfig | None:
        """Return the consumer's current configuration, or None if it does not exist."""
        queue = self.queues.get(consumer_id)
        return queue.consumer if queue else config_cache.consumers().get(consumer_id)

    def expect(self, consumer_id: int, due_at: datetime, level: int | None = None) -> bool:
        """Record that a consumer has a delivery due; return False if only other pumps serve it.

        ``level`` is its priority; None: unknown.
        """
        queue = self.queues.get(consumer_id)
        if queue is None:
            return False
        queue.expect(due_at, level)
        self.ready_consumers.note(queue)
        return True

    def read_next_due(self, consumer_ids: Iterable[int], now: datetime) -> None:
        """Read when these consumers, which have nothing due, have their next delivery due.

        Exact, so that scheduled deliveries do not wait for `discover`.
        """
        for consumer_id, due in due_times.by_priority(consumer_ids).items():
            self.queues[consumer_id].set_next_due(due, now)

    def discover(self, poll_s: float) -> float:
        """Read what some consumers have due; return the seconds until the next call.

        Examines a few at a time, so that a scan of thousands of consumers does not delay requests.
        """
        started = time.monotonic()
        turn = self._unexamined or list(self.queues)
        chosen, self._unexamined = turn[:DISCOVER_AT_ONCE], turn[DISCOVER_AT_ONCE:]
        queues = [self.queues[key] for key in chosen if key in self.queues]
        callable_now = [queue for queue in queues if not queue.consumer.halted]
        due = due_times.by_priority(queue.consumer.id for queue in callable_now)
        for queue in callable_now:
            queue.due = due.get(queue.consumer.id, {})
            self.ready_consumers.note(queue)
        rest_s = DISCOVER_SHARE * (time.monotonic() - started)
        return rest_s if self._unexamined else max(poll_s, rest_s)

    def suspend(self, queue: ConsumerQueue) -> None:
        """Pause a consumer whose signing keys this pump cannot decrypt."""
        queue.ready_at = clock.now().timestamp() + SUSPEND_S

    def learn(
        self,
        queue: ConsumerQueue,
        answer: Response,
        due_in: float | None,
        claimed: ClaimedDelivery,
    ) -> None:
        """Update a consumer's health from a response, and when its delivery is due again."""
        now = clock.now()
        if due_in is not None:
            queue.expect(now + timedelta(seconds=due_in), claimed.priority)
        if answer.is_local:
            # Not a failure, but its other deliveries would meet the same.
            queue.circuit = breaker.slowed(queue.circuit, now.timestamp(), None)
        if answer.outcome in _NEVER_SENT:
            return
        queue.answered(answer.total_ms / 1000, time.monotonic())
        if not answer.outcome.is_success:
            queue.last_failed = claimed.id
        instant = now.timestamp()
        queue.circuit = _next_circuit(queue.circuit, answer, instant)
        self._unsaved[queue.consumer.id] = (queue, answer)

    def save(self) -> None:
        """Save changes that people or another pump need now, and the others every few seconds."""
        if not self._unsaved:
            return
        now = clock.now()
        ticks = time.monotonic()
        chosen = {
            consumer_id: (queue, answer)
            for consumer_id, (queue, answer) in self._unsaved.items()
            if answer.outcome is Outcome.GONE
            or _differs(queue.circuit, queue.saved)
            or ticks - self._saved.get(consumer_id, 0.0) >= SAVE_S
        }
        if not chosen:
            return
        consumer_health.save(
            (
                HealthFinding(key, queue.circuit, answer.outcome.value, answer.outcome.is_success)
                for key, (queue, answer) in chosen.items()
            ),
            now,
        )
        for consumer_id, (queue, answer) in chosen.items():
            self._give_up(queue, answer.outcome is Outcome.GONE, now)
            # Removed last: changes that the database rejected above are saved next time.
            queue.saved = queue.circuit
            self._saved[consumer_id] = ticks
            del self._unsaved[consumer_id]

    def _give_up(self, queue: ConsumerQueue, gone: bool, now: datetime) -> None:
        days = conf().disable_after_days
        failing_before = now - timedelta(days=days)
        since, failures = queue.circuit.failing_since, queue.circuit.consecutive_failures
        lasting = since is not None and since < failing_before.timestamp()
        with confirmation.unconfirmed():
            if gone:
                consumer_health.disable(queue.consumer.id, reason="It answered 410 Gone.", now=now)
            elif lasting and failures >= DISABLE_FAILURES:
                reason = f"Its last {failures} attempts failed, over more than {days} days."
                consumer_health.disable(
                    queue.consumer.id, reason=reason, now=now, active_since=failing_before
                )

    def _adopt(self, consumer: ConsumerConfig, share: ConsumerShare, circuit: Circuit) -> None:
        queue = self.queues.get(consumer.id)
        if queue is None:
            arrival = _arrival(consumer)
            queue = ConsumerQueue(consumer, circuit, share, arrival=arrival)
            if former := self._former.pop(consumer.id, None):
                # The same object, because its open requests will be subtracted from it.
                former.consumer, former.circuit = consumer, circuit
                former.share, former.arrival, former.due = share, arrival, {}
                queue = former
            self.queues[consumer.id] = queue
            return
        if queue.consumer.halted and not consumer.halted:
            # A person has activated it again: forget its failures.
            queue.circuit = Circuit()
            queue.ready_at = 0.0
        queue.consumer, queue.share = consumer, share
        self.ready_consumers.note(queue)


def _shares(
    consumers: Iterable[ConsumerConfig], members: set[int], generation: int
) -> dict[int, ConsumerShare]:
    """Return this pump's share of each push consumer that it serves."""
    shares = {}
    for consumer in consumers:
        if consumer.mode != "push":
            continue
        owners = recipients.owners(consumer.id, members, consumer.pump_count)
        if generation in owners:
            shares[consumer.id] = ConsumerShare(owners.index(generation), owners)
    return shares


def _part(consumer: ConsumerConfig, share: ConsumerShare) -> ConsumerConfig:
    """Return the consumer with this pump's share of its limits."""
    if share.is_all:
        return consumer
    place, count = share.place, len(share.owners)
    burst = recipients.part(consumer.rate.burst, place, count) if consumer.rate else 0
    return consumer.within(recipients.part(consumer.max_in_flight, place, count), burst, count)


def _next_circuit(circuit: Circuit, answer: Response, instant: float) -> Circuit:
    if answer.outcome.is_success:
        return breaker.after_success(circuit, instant)
    if outcome.is_refusal(answer.outcome, answer.status):
        return breaker.after_refusal(circuit, instant)
    # A consumer that answers 429 works: it is slowed down, but not a failure.
    if answer.outcome is not Outcome.THROTTLED:
        circuit = breaker.after_failure(
            circuit,
            instant,
            threshold=conf().breaker_failures,
            base_s=conf().breaker_base_ms / 1000,
            cap_s=conf().breaker_cap_ms / 1000,
        )
    if answer.outcome.slows_down:
        circuit = breaker.slowed(circuit, instant, answer.retry_after)
    return circuit


def _differs(circuit: Circuit, saved: Circuit) -> bool:
    """Whether a circuit has changed so that people or other pumps need to know at once."""
    failing = circuit.failing_since is None, saved.failing_since is None
    return circuit.state != saved.state or failing[0] != failing[1]


def _arrival(consumer: ConsumerConfig) -> float:
    """Start a new owner without a burst, which the former one may just have used."""
    return 0.0 if consumer.rate is None else clock.now().timestamp() + consumer.rate.tolerance
