"""Capacity planner: how many deliveries of each consumer a pump may claim now."""

import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from typing import NamedTuple

from channels_app import keystore
from channels_app.config_cache import Signer, config_cache
from channels_app.rules.encryption import KeyMissing, Unreadable
from delivery.conf import conf
from delivery.rules.direct_claim import ClaimAllowance, DirectClaim
from delivery.runtime.assignment import Assignment
from delivery.runtime.consumer_queue import GUARD_EVERY, ConsumerQueue, QueueStatus
from delivery.runtime.ready_consumers import Pick
from delivery.steps import acknowledge
from delivery.steps.claim import ClaimRequest

logger = logging.getLogger(__name__)

FANOUT_BATCH = 200
"""Most messages of one fan-out."""
MIN_FANOUT_BATCH = 16
"""Messages that a fan-out may take even if nobody has room for so many at once."""
FULL_S = 0.005
CLAIM_BATCH = 100
"""Most rows of one claim: what comes meanwhile, however urgent, waits until they are sent."""
MIXED_BATCH, MIXED_S = 40, 2.0
"""Most rows of a claim and messages of a fan-out for so many seconds after more than one priority
was taken: smaller steps cost more, and nobody gains where all are equally urgent."""
MIN_SHARE = 4
"""Rows of each consumer that a claim asks for, where there are enough consumers: each of them is a
range to read. The others' turn is next."""
RESERVED, UNTRIED_RESERVED, LAST = 4, 16, 8
"""Parts of a pump's requests. One in four is for consumers that answer promptly, and for one
request each of those that have not answered yet, until one in sixteen is left. Of what exceeds the
last eighth each prompt one may have a quarter, and of the last eighth one request: should all of
them begin to hang, it takes very many to fill the pump before that is known."""


class CapacityPlanner:
    """Shares a pump's free requests out among its consumers."""

    def __init__(self, assignment: Assignment) -> None:
        self._roster = assignment
        self._eaters: list[int] = []
        """Consumers of the last fan-out."""
        self._claims = 0
        self.batch = CLAIM_BATCH
        """Most rows of the claim that was asked for last."""
        self._levels: Set[int] = frozenset()
        self._mixed_until = 0.0
        self._free = 0
        """Requests that may be opened, at the last look."""
        self.full_until = 0.0
        """Until when (`time.monotonic`) the fan-out waits for an answer to make room."""

    def fanout_limit(self, now: datetime) -> int:
        """How many messages to fan out now: as many as the hungriest consumer takes at birth.

        What is queued instead has to be claimed, and so has all that comes after it until none is
        left. 0 for a moment while those who have nothing waiting are full: not for longer, the
        others wait for their messages.
        """
        most = MIXED_BATCH if self._is_mixed() else FANOUT_BATCH
        queues = [queue for key in self._eaters if (queue := self._roster.queues.get(key))]
        rooms = [queue.capacity(now) for queue in queues if not queue.has_due(now)]
        ticks = time.monotonic()
        if rooms and not any(rooms):
            self.full_until = self.full_until or ticks + FULL_S
            return 0 if ticks < self.full_until else most
        self.full_until = 0.0
        return min(most, max(*rooms, MIN_FANOUT_BATCH)) if rooms else most

    def wants(self, owner: int, now: datetime, free: int) -> list[ClaimRequest]:
        """What to claim of what is due, where ``free`` more requests may be open.

        Never more than `claim.CONSUMERS_PER_QUERY`, so that one look decides across all of them.
        """
        self._free = free
        if free <= 0:
            return []
        oldest_first = self._claims % GUARD_EVERY == GUARD_EVERY - 1
        most = (MIXED_BATCH if self._is_mixed() else CLAIM_BATCH) // MIN_SHARE
        picks = self._roster.ready_consumers.gather(
            now, time.monotonic(), self._admits, most, from_below=oldest_first
        )
        picks = [pick for pick in picks if isinstance(self.signer(pick.queue), Signer)]
        self._claims += bool(picks)  # a look that finds nothing is nobody's turn
        self.batch = min(free, MIXED_BATCH if self._is_mixed() else CLAIM_BATCH)
        return [
            ClaimRequest(
                queue.view.id,
                limit,
                _lease_ms(queue),
                owner,
                oldest_first,
                levels=queue.due_levels(now),
                may_take_more=more,
                share=queue.share,
            )
            for queue, limit, more in shares(picks, free, self.batch)
        ]

    def claimer(
        self, owner: int, now: datetime, free: Callable[[], int], least: int = 0
    ) -> DirectClaim:
        """Who takes what a fan-out makes, within the room that there is then.

        Nothing below the priority ``least``, nor below anything that waits.
        """
        least = max(least, self._roster.ready_consumers.top())
        return DirectClaim(owner, now, lambda counts: self.leave(counts, now, free(), least), least)

    def leave(
        self, counts: Mapping[int, int], now: datetime, free: int, least: int = 0
    ) -> dict[int, ClaimAllowance]:
        """What to take of new deliveries as they are made; ``counts`` says how many there are.

        They have the priority ``least`` or more. A consumer that has something so urgent due
        already gets none: its claim goes by priority.
        """
        self._eaters = list(counts)
        self._free = free
        queues, ticks = self._roster.queues, time.monotonic()
        mine = [queues[consumer_id] for consumer_id in counts if consumer_id in queues]
        picks = []
        for queue in mine:
            if queue.top_due(now) >= least or not isinstance(self.signer(queue), Signer):
                continue
            status = queue.status(ticks)
            room = min(queue.capacity(now), self._admits(status, queue.in_flight))
            if room > 0:
                picks.append(Pick(queue, 0, room, status))
        others = self._roster.ready_consumers.waiting_count
        return {
            queue.view.id: ClaimAllowance(limit, _lease_ms(queue))
            for queue, limit, _ in shares(picks, free, CLAIM_BATCH, others)
        }

    def wake_at(self, free: int) -> float | None:
        """When the next consumer that may take something wants to be looked at, Unix seconds."""
        return self._roster.ready_consumers.wake_at() if free > 0 else None

    def signer(self, queue: ConsumerQueue) -> Signer | Unreadable:
        """The consumer's opened secrets, or why they cannot be opened: then it is left alone."""
        try:
            if queue.view.ack:
                keystore.signing_key(acknowledge.PURPOSE)  # of the address that it may call
            return config_cache.signer(queue.view.id)
        except KeyMissing as error:
            self._roster.miss(error.key_id)
            self._roster.suspend(queue)
            return error
        except Unreadable as error:
            logger.error("secrets of consumer %s cannot be opened: %s", queue.view.client_id, error)
            self._roster.suspend(queue)
            return error

    def saw(self, levels: Set[int]) -> None:
        """What was taken has these priorities; if what was taken before had others, steps are small
        for a while."""
        if self._levels and levels != self._levels:
            self._mixed_until = time.monotonic() + MIXED_S
        self._levels = levels

    def _is_mixed(self) -> bool:
        return time.monotonic() < self._mixed_until

    def _admits(self, status: QueueStatus, in_flight: int) -> int:
        return admits(status, in_flight, self._free)


def admits(status: QueueStatus, in_flight: int, free: int) -> int:
    """How many more requests a consumer may open, of ``free`` ones that the pump has left.

    Who does not answer promptly has no more open than it leaves to others in the common part: the
    more consumers hang, the less each of them gets. The rest of the pump is for those that do.
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


class Share(NamedTuple):
    """How much a consumer may take at once."""

    queue: ConsumerQueue
    limit: int
    may_take_more: bool
    """Whether the limit leaves to others what this one might take."""


def shares(picks: Sequence[Pick], free: int, most: int, others: int = 0) -> list[Share]:
    """How much each may take beside so many ``others``; the most urgent come first.

    Those of one priority share ``most``, which is what one claim takes; what is more than that in
    all, the claim leaves to the most urgent.
    """
    most = min(free, most)
    alike = Tally(pick.level for pick in picks)
    shared = []
    for queue, level, room, status in picks:
        room = min(room, admits(status, queue.in_flight, free))
        limit = min(room, max(1, most // (alike[level] + others)))
        if limit > 0:
            free -= limit
            shared.append(Share(queue, limit, may_take_more=limit < room))
    return shared


def _lease_ms(queue: ConsumerQueue) -> int:
    return queue.view.timeout_ms + conf().lease_grace_ms
