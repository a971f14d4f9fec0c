"""Move waiting deliveries of a queue from an unavailable consumer to another one.

A queue's message may go to any of its consumers. The fan-out has chosen one, which may since have
been paused, disabled or retired, have an open circuit, or have no worker that asks any more.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from channels_app.core.subscriptions import Subscriptions
from channels_app.database import transactions
from channels_app.models import Channel, Consumer, Message
from channels_app.registry.cache import ChannelConfig, ConsumerConfig, config_cache
from delivery import metrics, transitions
from delivery.core.lifecycle import DeliveryState
from delivery.core.ordering import BEHIND
from delivery.core.recipients import Recipients
from delivery.models import ConsumerHealth, Counter, Delivery, OrderingWaiter, PullWorker

QUEUED = DeliveryState.QUEUED.value
BATCH = 500
CONSUMERS = 1_000
"""Consumers whose counters one query reads."""
MAX_ROWS = 5_000
"""Deliveries of one consumer examined per run; some may fit no other consumer."""


def is_needed() -> bool:
    """Whether there is any queue."""
    return any(True for _ in _queues())


def absent() -> set[int]:
    """Return queues' pull consumers without an active worker."""
    return PullWorker.absent(
        consumer.id
        for channel in _queues()
        for consumer in channel.consumers
        if consumer.mode == Consumer.Mode.PULL
    )


def reassign(now: datetime, slot: int) -> Iterator[Tally[int]]:
    """Move waiting deliveries to available consumers; yield how many each got, batch by batch.

    An attempted delivery stays within its team, which may see the responses, and keeps its failure
    count, so that a message that no consumer can handle finally becomes a dead letter. A delivery
    with an ordering key stays with its consumer unless that was retired (`core.recipients`).
    """
    config_cache.refresh(now=True)
    queues = {channel.id: channel for channel in _queues()}
    consumers = [consumer for channel in queues.values() for consumer in channel.consumers]
    away = {consumer.id for consumer in consumers if consumer.halted} | absent()
    away |= ConsumerHealth.resting([consumer.id for consumer in consumers])
    for source in _sources(away):
        if (channel := queues.get(source.channel_id)) is None:
            continue  # became a queue just now
        pools = _Pools(source, channel, away)
        if not pools.are_empty:
            yield from _empty(source, pools, now, slot)


def _queues() -> Iterator[ChannelConfig]:
    return (channel for channel in config_cache.channels() if channel.kind == Channel.Kind.QUEUE)


def _sources(away: set[int]) -> Iterator[Consumer]:
    """Yield queues' unavailable or retired consumers with waiting deliveries."""
    retired = Consumer.objects.filter(
        channel__kind=Channel.Kind.QUEUE, state=Consumer.State.RETIRED
    )
    gone = sorted(away.union(retired.values_list("id", flat=True)))
    for start in range(0, len(gone), CONSUMERS):
        counts = Counter.read(gone[start : start + CONSUMERS])
        waiting = [consumer_id for consumer_id in counts if counts[consumer_id][QUEUED] > 0]
        yield from Consumer.objects.filter(id__in=waiting).order_by("id")


class _Pools:
    """The consumers among which one consumer's deliveries are distributed."""

    def __init__(self, source: Consumer, channel: ChannelConfig, away: set[int]) -> None:
        self.is_retired = source.state == Consumer.State.RETIRED
        self._team_id = source.team_id
        self._channel = channel
        self._other_consumers = [
            consumer for consumer in channel.consumers if consumer.id != source.id
        ]
        able = [consumer for consumer in self._other_consumers if consumer.id not in away]
        # A retired consumer's deliveries would be cancelled, so an unavailable consumer is better.
        self._able = able or (self._other_consumers if self.is_retired else [])
        self._dealers: dict[tuple[bool, bool], Recipients] = {}

    @property
    def are_empty(self) -> bool:
        """Whether no consumer can get any delivery, such as in a queue with one consumer."""
        return not self._able

    def chosen(self, row: Delivery) -> int | None:
        """Return the consumer that gets the delivery; None if there is none."""
        kind = bool(row.ordering_key), row.attempt_count > 0
        if kind not in self._dealers:
            self._dealers[kind] = self._dealer(*kind)
        consumer_ids = self._dealers[kind].of(self._channel.id, row.event_type, row.ordering_key)
        return consumer_ids[0] if consumer_ids else None

    def _dealer(self, is_keyed: bool, is_attempted: bool) -> Recipients:
        pool: Sequence[ConsumerConfig] = self._other_consumers if is_keyed else self._able
        if is_attempted:
            pool = [consumer for consumer in pool if consumer.team_id == self._team_id]
        channel = replace(self._channel, subscriptions=Subscriptions(pool))
        return Recipients({channel.id: channel}, Counter.unfinished, lambda ids: ())


def _empty(source: Consumer, pools: _Pools, now: datetime, slot: int) -> Iterator[Tally[int]]:
    last: int | None = 0
    for _ in range(MAX_ROWS // BATCH):
        last, given = transactions.run(partial(_move, source, pools, last or 0, now, slot))
        if last is None:
            return
        yield given


def _move(
    source: Consumer, pools: _Pools, after: int, now: datetime, slot: int
) -> tuple[int | None, Tally[int]]:
    """Move the next batch after a row; return the last row examined, and how many each got."""
    rows = Delivery.objects.filter(consumer_id=source.id, state=QUEUED, id__gt=after)
    if not pools.is_retired:
        rows = rows.filter(ordering_key="")
    batch = list(rows.order_by("id").select_for_update(skip_locked=True)[:BATCH])
    if not batch:
        return None, Tally()
    had = set(
        Delivery.objects.filter(message_id__in=[row.message_id for row in batch])
        .exclude(consumer_id=source.id)
        .values_list("message_id", "consumer_id")
    )
    chosen = [(row, pools.chosen(row)) for row in batch]
    to = {
        row.id: consumer_id
        for row, consumer_id in chosen
        if consumer_id and (row.message_id, consumer_id) not in had
    }
    if to:
        rows_given = [row for row in batch if row.id in to]
        transitions.hand_over(rows_given, to, _due(rows_given, now), now=now, slot=slot)
        metrics.SWEEP_ROWS.labels("reassigned").inc(len(to))
    return batch[-1].id, Tally(to.values())


def _due(rows: Iterable[Delivery], now: datetime) -> dict[int, datetime]:
    """Return when each is due: retries at once, because their wait was for the former consumer."""
    rows = list(rows)
    behind = [row.id for row in rows if row.is_behind]
    waits = OrderingWaiter.objects.filter(delivery_id__in=behind)
    instants = dict(waits.values_list("delivery_id", "due_at"))
    tried = {row.message_id for row in rows if row.attempt_count}
    scheduled = Message.objects.filter(id__in=tried, due_at__gt=now)
    ahead = dict(scheduled.values_list("id", "due_at"))
    due: dict[int, datetime] = {}
    for row in rows:
        if row.attempt_count:
            due[row.id] = ahead.get(row.message_id, now)
        elif row.due_at is not None:
            due[row.id] = instants.get(row.id, now) if row.due_at == BEHIND else row.due_at
    return due
