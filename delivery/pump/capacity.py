"""Plan how many deliveries of each consumer a pump may claim now."""

import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from channels_app.core.encryption import KeyMissing, Unreadable
from channels_app.registry import data_encryption
from channels_app.registry.cache import Signer, config_cache
from delivery.acks import callbacks
from delivery.conf import conf
from delivery.core.lifecycle import ClaimAllowance, DirectClaim
from delivery.models import Counter
from delivery.pump.assignment import Assignment, Pick
from delivery.pump.consumer_queue import GUARD_EVERY, ConsumerQueue, QueueStatus
from delivery.queue.claim import ClaimRequest

logger = logging.getLogger(__name__)

FANOUT_BATCH = 200
"""Most messages of one fan-out."""
MIN_FANOUT_BATCH = 16
"""Messages that a fan-out may take even if no consumer has room for as many."""
FULL_S = 0.005
CLAIM_BATCH = 400
"""Most rows of one claim. With 100, five consumers cost 38 % more CPU time per delivery."""
MAX_CLAIMING = 25
"""Most consumers of one claim, since each of them costs a range read. The others are next."""
MIXED_BATCH, MIXED_S = 25, 2.0
"""Limit for claims and fan-outs during MIXED_S seconds after more than one priority was claimed, or
a message passed slow consumers. Smaller steps cost more, and help only if some are in a hurry."""
MIN_SHARE = 4
"""Fewest rows of each consumer that a claim requests when there are many consumers."""
RESERVED, UNTRIED_RESERVED, LAST = 4, 16, 8
"""Divisors of a pump's requests. A quarter is reserved for consumers that answer promptly, and for
one request each of consumers that have not answered yet, until 1/16 is left. Of what exceeds the
last eighth each prompt consumer may use a quarter; of the last eighth, one request. So if they all
begin to hang, it takes very many to fill the pump before that is known."""


class CapacityPlanner:
    """Distributes a pump's free requests among its consumers."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._fanout_consumers: list[int] = []
        """Consumers of the last fan-out."""
        self._claims = 0
        self.batch = CLAIM_BATCH
        """Most rows of the last requested claim."""
        self._levels: Set[int] = frozenset()
        self._mixed_until = 0.0
        self._free = 0
        """Requests that could be opened at the last check."""
        self.full_until = 0.0
        """Until when (`time.monotonic`) the fan-out waits for a response to make room."""

    def fanout_limit(self, now: datetime) -> int:
        """Return how many messages to fan out: as many as the consumer with most room can claim.

        Deliveries that are queued instead must be claimed later, as all following ones until the
        queue is empty. Returns 0 for a moment while consumers without a backlog are full; not for
        longer, because other consumers wait for their messages.
        """
        most = MIXED_BATCH if self._is_mixed() else FANOUT_BATCH
        queues = [
            queue for key in self._fanout_consumers if (queue := self._assignment.queues.get(key))
        ]
        rooms = [queue.capacity(now) for queue in queues if not queue.has_due(now)]
        ticks = time.monotonic()
        if rooms and not any(rooms):
            self.full_until = self.full_until or ticks + FULL_S
            return 0 if ticks < self.full_until else most
        self.full_until = 0.0
        return min(most, max(*rooms, MIN_FANOUT_BATCH)) if rooms else most

    def claim_requests(self, owner: int, now: datetime, free: int) -> list[ClaimRequest]:
        """Return the claims to make of due deliveries, while ``free`` more requests may be open.

        At most `MAX_CLAIMING`, so that one query decides across all of them.
        """
        self._free = free
        if free <= 0:
            return []
        oldest_first = self._claims % GUARD_EVERY == GUARD_EVERY - 1
        batch = MIXED_BATCH if self._is_mixed() else CLAIM_BATCH
        most = min(MAX_CLAIMING, batch // MIN_SHARE)
        picks = self._assignment.ready_consumers.gather(
            now, time.monotonic(), self._admits, most, from_below=oldest_first
        )
        config_cache.prepare_signers([pick.queue.consumer.id for pick in picks])
        picks = [pick for pick in picks if isinstance(self.signer(pick.queue), Signer)]
        self._claims += bool(picks)  # a claim that finds nothing does not count
        self.batch = min(free, batch)
        return [
            ClaimRequest(
                queue.consumer.id,
                limit,
                _lease_ms(queue),
                owner,
                oldest_first,
                levels=queue.due_levels(now),
                may_take_more=more,
                share=queue.share,
                avoided=queue.avoided,
            )
            for queue, limit, more in shares(picks, free, self.batch)
        ]

    def claimer(
        self,
        owner: int,
        now: datetime,
        free: Callable[[], int],
        min_priority: int = 0,
        *,
        leaves_room: bool = True,
    ) -> DirectClaim:
        """Return a direct claim for a fan-out, limited to the room at that time.

        Excludes deliveries below the priority ``min_priority``, or below any that waits. Unless it
        ``leaves_room`` for consumers that wait, only the fair shares of its own ones limit it.
        """
        min_priority = max(min_priority, self._assignment.ready_consumers.top())
        return DirectClaim(
            owner,
            now,
            lambda counts: self.allowances(
                counts, now, free(), min_priority, leaves_room=leaves_room
            ),
            min_priority,
        )

    def allowances(
        self,
        counts: Mapping[int, int],
        now: datetime,
        free: int,
        min_priority: int = 0,
        *,
        leaves_room: bool = True,
    ) -> dict[int, ClaimAllowance]:
        """Return how many new deliveries to claim directly; ``counts`` says how many there are.

        They have the priority ``min_priority`` or more. A consumer that already has such deliveries
        due gets none, because its claims must go by priority.
        """
        if leaves_room:
            self._fanout_consumers = list(counts)
        self._free = free
        queues, ticks = self._assignment.queues, time.monotonic()
        candidates = [queues[consumer_id] for consumer_id in counts if consumer_id in queues]
        config_cache.prepare_signers([queue.consumer.id for queue in candidates])
        picks = []
        for queue in candidates:
            if queue.top_due(now) >= min_priority or not isinstance(self.signer(queue), Signer):
                continue
            status = queue.status(ticks)
            room = min(queue.capacity(now), self._admits(status, queue.in_flight))
            if room > 0:
                picks.append(Pick(queue, 0, room, status))
        waiting_count = self._assignment.ready_consumers.waiting_count if leaves_room else 0
        return {
            queue.consumer.id: ClaimAllowance(limit, _lease_ms(queue))
            for queue, limit, _ in shares(picks, free, CLAIM_BATCH, waiting_count)
        }

    def ready_at_once(self, consumers: Mapping[int, Collection[int]], now: datetime) -> list[int]:
        """Return the messages, given with their consumers, for which nothing has to wait.

        Nothing waits for any of their consumers yet, and those of this pump answer promptly, as far
        as it is known.
        """
        wanted = set(chain.from_iterable(consumers.values()))
        elsewhere = wanted - self._assignment.queues.keys()
        unfinished = Counter.unfinished(elsewhere) if elsewhere else {}
        ticks = time.monotonic()
        idle = {key for key in elsewhere if not unfinished.get(key)}
        for consumer_id in wanted - elsewhere:
            if self._assignment.queues[consumer_id].is_idle(now, ticks):
                idle.add(consumer_id)
        return [
            key
            for key, consumer_ids in consumers.items()
            if consumer_ids and idle.issuperset(consumer_ids)
        ]

    def wake_at(self, free: int) -> float | None:
        """Return when the next ready consumer must be checked, in Unix seconds."""
        return self._assignment.ready_consumers.wake_at() if free > 0 else None

    def signer(self, queue: ConsumerQueue) -> Signer | Unreadable:
        """Return the consumer's decrypted secrets, or the error; then the consumer is paused."""
        try:
            if queue.consumer.ack:
                data_encryption.signing_key(callbacks.PURPOSE)  # for the acknowledgement URL
            return config_cache.signer(queue.consumer.id)
        except KeyMissing as error:
            self._assignment.miss(error.key_id)
            self._assignment.suspend(queue)
            return error
        except Unreadable as error:
            logger.error(
                "secrets of consumer %s cannot be decrypted: %s", queue.consumer.client_id, error
            )
            self._assignment.suspend(queue)
            return error

    def record_levels(self, levels: Set[int]) -> None:
        """Record the priorities of a claim; if they differ from the last one's, use small steps.

        See `MIXED_BATCH`.
        """
        if self._levels and levels != self._levels:
            self.take_small_steps()
        self._levels = levels

    def take_small_steps(self) -> None:
        """Limit claims and fan-outs to `MIXED_BATCH` for `MIXED_S` seconds."""
        self._mixed_until = time.monotonic() + MIXED_S

    def _is_mixed(self) -> bool:
        return time.monotonic() < self._mixed_until

    def _admits(self, status: QueueStatus, in_flight: int) -> int:
        return admits(status, in_flight, self._free)


def admits(status: QueueStatus, in_flight: int, free: int) -> int:
    """Return how many more requests a consumer may open if the pump has ``free`` ones left.

    A consumer that does not answer promptly may have no more open requests than it leaves to others
    in the common part: the more consumers hang, the less each of them gets. The rest of the pump is
    reserved for prompt consumers.
    """
    all_of_it = conf().pump_in_flight
    common = free - all_of_it // RESERVED
    if status is QueueStatus.PROMPT:
        more = (free - all_of_it // LAST) // RESERVED - in_flight
        return max(common, more, int(free > 0 and not in_flight))
    fair = (common - in_flight + 1) // 2
    if status is QueueStatus.UNTRIED:
        return max(fair, int(free > all_of_it // UNTRIED_RESERVED))
    return fair


class PumpShare(NamedTuple):
    """How many deliveries of a consumer may be claimed at once."""

    queue: ConsumerQueue
    limit: int
    may_take_more: bool
    """Whether the consumer could take more than this limit."""


def shares(picks: Sequence[Pick], free: int, most: int, waiting_count: int = 0) -> list[PumpShare]:
    """Divide ``free`` requests among ``picks``, most urgent first.

    ``waiting_count`` is the number of further consumers that wait. Consumers of one priority share
    ``most``, the size of one claim. The shares may add up to more; the claim then prefers the most
    urgent rows.
    """
    most = min(free, most)
    by_level = Tally(pick.level for pick in picks)
    shared = []
    for queue, level, room, status in picks:
        room = min(room, admits(status, queue.in_flight, free))
        limit = min(room, max(1, most // (by_level[level] + waiting_count)))
        if limit > 0:
            free -= limit
            shared.append(PumpShare(queue, limit, may_take_more=limit < room))
    return shared


def _lease_ms(queue: ConsumerQueue) -> int:
    return queue.consumer.timeout_ms + conf().lease_grace_ms
