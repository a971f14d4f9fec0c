"""Fan out messages to deliveries, one for each matching consumer, all or none (S0-32).

A pump that has capacity can have due deliveries created as already claimed. That saves finding,
locking and updating each row later.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from channels_app import failpoints
from channels_app.database import raw, transactions
from channels_app.models import Consumer, Message, new_id, reseed_ids
from channels_app.registry.cache import config_cache
from delivery import transitions
from delivery.core.lifecycle import ClaimedDelivery, DirectClaim
from delivery.core.ordering import BEHIND
from delivery.core.recipients import Recipients
from delivery.models import ConsumerHealth, Counter, PullWorker
from delivery.ordering import key_queue
from delivery.queue import waiting_messages
from delivery.queue.waiting_messages import MessageScan, SelectPayloads, WaitingMessage

Choose: TypeAlias = Callable[[Mapping[int, Collection[int]]], Collection[int]]
"""Gets the consumers of each message, and returns the messages that go first."""
MAX_ROWS = 200
"""Deliveries that one transaction creates, unless a single message has more consumers. A more
urgent message waits until the transaction ends."""
RIVALS_S, RIVAL_PAUSE_S = 1.0, 0.002
"""Seconds a receiver waits for other processes' fan-outs, and between two checks."""
MAX_PASSED = 2_000
"""Messages that a fan-out skips because other processes hold them, or wait behind those in an
ordering key: as many as ten pumps hold at a time."""
NEVER = raw.text(BEHIND)


@dataclass(frozen=True, slots=True)
class FanoutResult:
    """The deliveries that one batch of fan-out created."""

    message_count: int = 0
    more: bool = False
    """Whether more messages may be waiting."""
    is_backlog: bool = False
    """Whether so many waited that the scan stopped before it had seen all of them."""
    priority: int = 0
    """The highest priority of the messages."""
    oldest_accepted_at: datetime | None = None
    due: dict[int, dict[int, datetime]] = field(default_factory=dict)
    """When each consumer's earliest queued delivery of each priority is due."""
    claimed: list[ClaimedDelivery] = field(default_factory=list)
    """Deliveries that the claimer holds now; each consumer's in the order in which to send them."""
    payload_rows: list[tuple[Any, ...]] = field(default_factory=list)
    """Rows that ``select_payloads`` returned."""


class _NewDelivery(NamedTuple):
    """A delivery to be created."""

    id: int
    message: WaitingMessage
    consumer_id: int


def fan_out(
    limit: int,
    slot: int,
    claimer: DirectClaim | None = None,
    notified: Collection[int] = (),
    select_payloads: SelectPayloads | None = None,
    *,
    oldest_first: bool = False,
    is_backlog: bool = False,
) -> FanoutResult:
    """Fan out up to ``limit`` accepted messages; those of the highest priority from a backlog.

    Any number of processes may call it at the same time: it skips messages that another one has
    locked, and messages already fanned out have left the state that it looks for. ``notified`` are
    ids of messages that probably wait; other waiting messages are found as well.
    ``select_payloads`` reads the payloads in the same round trip if there are few messages.
    ``oldest_first`` ignores priority: the guard against starvation. ``is_backlog`` says that the
    last fan-out left a backlog, which saves a query.
    """
    scan = MessageScan(limit)
    if notified:
        result = _make(partial(_fan_out_notified, notified, scan, slot, claimer, select_payloads))
        if result.message_count or not result.more:
            return result
    if is_backlog:
        return _run_backlog(scan, slot, claimer, oldest_first=oldest_first)
    return _run(scan, slot, claimer, oldest_first=oldest_first)


def fan_out_past_backlog(
    message_ids: Collection[int],
    slot: int,
    claimer: DirectClaim,
    select_payloads: SelectPayloads,
    choose: Choose,
) -> FanoutResult:
    """Fan out some of these messages before the backlog that was accepted earlier.

    Messages of an ordering key stay in order, and wait with the backlog.
    """
    if len(message_ids) > waiting_messages.FEW:
        # Without locks: most of them belong to the backlog.
        message_ids = _choose(waiting_messages.read(message_ids), choose)
        if not message_ids:
            return FanoutResult()
        choose = list
    return _make(partial(_fan_out_chosen, message_ids, slot, claimer, select_payloads, choose))


def fan_out_for_receiver(
    message_ids: Collection[int], slot: int, claimer: DirectClaim, select_payloads: SelectPayloads
) -> FanoutResult:
    """Fan out only these messages, for a receiver that waits for one of them.

    Does nothing if another process holds the messages, or if a consumer of their channel is
    ordered: that needs a scan of all waiting messages, which the pumps do.
    """
    return _make(partial(_fan_out_alone, message_ids, slot, claimer, select_payloads))


def fan_out_late(limit: int, slot: int, *, accepted_before: datetime) -> FanoutResult:
    """Fan out messages that were accepted before an instant and still wait (S0-33)."""
    scan = MessageScan(limit, " AND accepted_at < %s", (raw.text(accepted_before),))
    return _run(scan, slot, None, oldest_first=True)


def fan_out_channel(channel_id: int, slot: int) -> Iterator[FanoutResult]:
    """Fan out what waits in one channel, for a receiver that asks now.

    Yields the result of each transaction. Waits up to `RIVALS_S` seconds for messages that another
    process is fanning out. Of a large backlog only the newest messages are fanned out, without
    those of ordering keys.
    """
    ids, is_all = waiting_messages.of_channel(channel_id)
    if not ids:
        return
    if is_all:
        work = partial(_fan_out_messages, ids, len(ids), MessageScan(len(ids)), slot, None)
    else:
        work = partial(_fan_out_free, ids, slot)
    end = time.monotonic() + RIVALS_S
    while True:
        result = _make(work)
        yield result
        can_go_on = result.message_count > 0 or is_all
        if not (can_go_on and waiting_messages.are_waiting(ids) and time.monotonic() < end):
            return
        if not result.message_count:
            time.sleep(RIVAL_PAUSE_S)


def _run(
    scan: MessageScan, slot: int, claimer: DirectClaim | None, *, oldest_first: bool
) -> FanoutResult:
    # Scan without locks first. An idle broker then opens no transaction, and a locking scan would
    # also stop at each index entry of earlier messages that the database has not purged yet: with
    # ten messages waiting that takes three times as long.
    ids, is_all = scan.first()
    if is_all:
        return (
            _make(partial(_fan_out_messages, ids, len(ids), scan, slot, claimer))
            if ids
            else FanoutResult()
        )
    if ids:
        result = _make(partial(_fan_out_messages, ids, len(ids), scan, slot, claimer))
        if result.message_count:
            return result
        return _run_oldest(scan, slot, claimer, scan.ranked(0, oldest_first=True).ids)
    return _run_backlog(scan, slot, claimer, oldest_first=oldest_first)


def _run_backlog(
    scan: MessageScan, slot: int, claimer: DirectClaim | None, *, oldest_first: bool
) -> FanoutResult:
    ids, is_alike, is_all = scan.ranked(0, oldest_first=oldest_first)
    if not (oldest_first or is_alike):
        result = _make(partial(_fan_out_urgent, ids, slot, claimer))
        if result.message_count:
            return replace(result, is_backlog=not is_all)
        ids = scan.ranked(0, oldest_first=True).ids
    return replace(_run_oldest(scan, slot, claimer, ids), is_backlog=not is_all)


def _run_oldest(
    scan: MessageScan, slot: int, claimer: DirectClaim | None, ids: list[int]
) -> FanoutResult:
    """Fan out the oldest messages, of which ``ids`` are the first."""
    seen_ids, more = list[int](), False
    while ids:
        if len(seen_ids) >= MAX_PASSED:
            return FanoutResult(more=True)
        seen_ids += ids
        result = _make(partial(_fan_out_messages, seen_ids, len(ids), scan, slot, claimer))
        if result.message_count or len(ids) < scan.limit:
            return result
        # Other processes hold all of these; more may wait behind them.
        more = more or result.more
        ids = scan.ranked(len(seen_ids), oldest_first=True).ids
    return FanoutResult(more=more)


def _make(work: Callable[[], FanoutResult]) -> FanoutResult:
    result = transactions.run(work, on_collision=reseed_ids)
    failpoints.reach("after_claimed_fanout" if result.claimed else "after_fanout")
    return result


def _fan_out_messages(
    seen_ids: list[int], new_count: int, scan: MessageScan, slot: int, claimer: DirectClaim | None
) -> FanoutResult:
    locked, _ = waiting_messages.lock(seen_ids[-new_count:])
    if not locked:
        return FanoutResult()
    result = _fan_out(key_queue.in_turn(locked, seen_ids), slot, claimer)
    return replace(result, more=new_count == scan.limit or result.message_count < len(locked))


def _fan_out_free(ids: list[int], slot: int) -> FanoutResult:
    """Fan out a backlog's messages that may overtake others."""
    locked, _ = waiting_messages.lock(ids)
    return _fan_out(_free(locked), slot, None)


def _free(locked: list[WaitingMessage]) -> list[WaitingMessage]:
    """Return messages that may overtake others; those of an ordering key keep their order."""
    channels = {consumer.channel_id for consumer in config_cache.ordered().values()}
    return [
        message
        for message in locked
        if not (message.ordering_key and message.channel_id in channels)
    ]


def _fan_out_urgent(ids: list[int], slot: int, claimer: DirectClaim | None) -> FanoutResult:
    """Fan out a backlog's messages of the highest priority that may overtake others.

    Messages of an ordering key stay in order and wait for a fan-out by age. That follows at once if
    they are more than half of the messages found.
    """
    locked, _ = waiting_messages.lock(ids)
    highest = max((message.priority for message in locked), default=0)
    locked = [message for message in locked if message.priority == highest]
    free = _free(locked)
    if 2 * len(free) < len(locked):
        return FanoutResult(more=True)
    return replace(_fan_out(free, slot, claimer), more=True)


def _fan_out_notified(
    notified: Collection[int],
    scan: MessageScan,
    slot: int,
    claimer: DirectClaim | None,
    select_payloads: SelectPayloads | None,
) -> FanoutResult:
    waiting, is_all, locked, payload_rows = scan.with_notified(notified, select_payloads)
    if not locked:
        return FanoutResult(more=bool(waiting) or not is_all)
    result = _fan_out(key_queue.in_turn(locked, waiting), slot, claimer)
    return replace(
        result, more=not is_all or result.message_count < len(waiting), payload_rows=payload_rows
    )


def _fan_out_alone(
    message_ids: Collection[int], slot: int, claimer: DirectClaim, select_payloads: SelectPayloads
) -> FanoutResult:
    locked, payload_rows = waiting_messages.lock(message_ids, select_payloads)
    channels = {consumer.channel_id for consumer in config_cache.ordered().values()}
    if not locked or any(message.channel_id in channels for message in locked):
        return FanoutResult()
    return replace(_fan_out(locked, slot, claimer), payload_rows=payload_rows)


def _fan_out_chosen(
    message_ids: Collection[int],
    slot: int,
    claimer: DirectClaim,
    select_payloads: SelectPayloads,
    choose: Choose,
) -> FanoutResult:
    locked, payload_rows = waiting_messages.lock(message_ids, select_payloads)
    chosen = set(_choose(locked, choose))
    result = _fan_out([message for message in locked if message.id in chosen], slot, claimer)
    return replace(result, payload_rows=payload_rows)


def _choose(
    messages: list[WaitingMessage],
    choose: Choose,
) -> Collection[int]:
    channels = config_cache.channels_by_id()
    consumer_ids = {}
    for message in _free(messages):
        channel = channels.get(message.channel_id)
        consumer_ids[message.id] = [
            consumer.id for consumer in (channel.wanting(message.event_type) if channel else ())
        ]
    return choose(consumer_ids)


def _fan_out(locked: list[WaitingMessage], slot: int, claimer: DirectClaim | None) -> FanoutResult:
    """Create the deliveries of locked messages."""
    messages, rows = _deliveries(locked)
    if not messages:
        return FanoutResult()
    entered = key_queue.new_deliveries(rows)
    if entered.behind:
        rows = [_behind(row) if row.id in entered.behind else row for row in rows]
    chosen = _chosen(rows, claimer)
    queued = [row for row in rows if row.id not in chosen] if chosen else rows
    claimed = _claimed(chosen.values(), claimer)
    due: dict[tuple[int, int], str] = {}
    for _, message, consumer_id in queued:
        if message.due_at == NEVER:
            continue
        key = consumer_id, message.priority
        due[key] = min(due.get(key, message.due_at), message.due_at)
    by_consumer: dict[int, dict[int, datetime]] = {}
    for (consumer_id, priority), due_at in due.items():
        by_consumer.setdefault(consumer_id, {})[priority] = raw.instant(due_at)
    result = FanoutResult(
        message_count=len(messages),
        priority=max(message.priority for message in messages),
        oldest_accepted_at=raw.instant(min(message.accepted_at for message in messages)),
        due=by_consumer,
        claimed=claimed,
    )
    failpoints.reach("in_claimed_fanout" if claimed else "in_fanout")
    new = [(_numbers(row), _values(row.message, row.message.due_at)) for row in queued]
    raw.execute_last(
        [
            *entered.statements,
            *transitions.creating(new, _claimed_rows(chosen.values(), claimer), slot),
            *_mark_dispatched(messages, rows),
        ]
    )
    return result


def _deliveries(messages: list[WaitingMessage]) -> tuple[list[WaitingMessage], list[_NewDelivery]]:
    """Return the messages that fit into one transaction, and their deliveries."""
    recipients = Recipients(config_cache.channels_by_id(), Counter.unfinished, _away)
    rows: list[_NewDelivery] = []
    for place, message in enumerate(messages):
        ids = recipients.of(message.channel_id, message.event_type, message.ordering_key)
        if place and len(rows) + len(ids) > MAX_ROWS:
            return messages[:place], rows
        rows += [_NewDelivery(new_id(), message, consumer_id) for consumer_id in ids]
    return messages, rows


def _away(consumer_ids: Collection[int]) -> set[int]:
    """Return a queue's consumers to leave out while others are available."""
    consumers = config_cache.consumers()
    pull_ids = (key for key in consumer_ids if consumers[key].mode == Consumer.Mode.PULL)
    return ConsumerHealth.resting(consumer_ids) | PullWorker.absent(pull_ids)


def _chosen(
    rows: list[_NewDelivery], claimer: DirectClaim | None
) -> dict[int, tuple[_NewDelivery, int]]:
    """Return what the claimer claims by id, most urgent first, with the lease in milliseconds."""
    if claimer is None:
        return {}
    now = raw.text(claimer.now)
    due: dict[int, list[_NewDelivery]] = {}
    for row in rows:
        if row.message.priority >= claimer.min_priority and row.message.is_due(now):
            due.setdefault(row.consumer_id, []).append(row)
    chosen: dict[int, tuple[_NewDelivery, int]] = {}
    allowances = claimer.allow(
        {consumer_id: len(new_rows) for consumer_id, new_rows in due.items()}
    )
    for consumer_id, (limit, lease_ms) in allowances.items():
        best = sorted(due[consumer_id], key=_urgency)
        chosen |= {row.id: (row, lease_ms) for row in best[:limit]}
    return chosen


def _behind(row: _NewDelivery) -> _NewDelivery:
    """Return the row as waiting for an earlier delivery of its key (ordering/key_queue.py)."""
    return row._replace(message=row.message._replace(due_at=NEVER))


def _urgency(row: _NewDelivery) -> tuple[int, str, int]:
    return -row.message.priority, row.message.due_at, row.id


def _numbers(row: _NewDelivery) -> tuple[int, ...]:
    message = row.message
    return row.id, message.id, row.consumer_id, message.channel_id, message.priority


def _values(message: WaitingMessage, due_at: str) -> tuple[str | None, ...]:
    kind = message.event_type, message.ordering_key
    return due_at, message.expires_at, *kind, message.accepted_at


def _claimed_rows(
    chosen: Iterable[tuple[_NewDelivery, int]], claimer: DirectClaim | None
) -> Iterable[raw.Row]:
    if claimer is None:
        return ()
    ends = {lease_ms: raw.text(claimer.end(lease_ms)) for _, lease_ms in chosen}
    return [
        ((*_numbers(row), claimer.owner), _values(row.message, ends[lease_ms]))
        for row, lease_ms in chosen
    ]


def _claimed(
    chosen: Iterable[tuple[_NewDelivery, int]], claimer: DirectClaim | None
) -> list[ClaimedDelivery]:
    if claimer is None:
        return []
    ends: dict[int, datetime] = {}
    instants: dict[str, datetime] = {}
    claimed: list[ClaimedDelivery] = []
    for (delivery_id, message, consumer_id), lease_ms in chosen:
        if lease_ms not in ends:
            ends[lease_ms] = claimer.end(lease_ms)
        for text in (message.due_at, message.accepted_at):
            if text not in instants:
                instants[text] = raw.instant(text)
        claimed.append(
            ClaimedDelivery(
                id=delivery_id,
                message_id=message.id,
                consumer_id=consumer_id,
                attempt=1,
                failure_count=0,
                interruption_count=0,
                priority=message.priority,
                due_at=instants[message.due_at],
                accepted_at=instants[message.accepted_at],
                event_type=message.event_type,
                ordering_key=message.ordering_key,
                replayed=False,
                lease_until=ends[lease_ms],
            )
        )
    return claimed


def _mark_dispatched(
    messages: Sequence[WaitingMessage], rows: Iterable[_NewDelivery]
) -> Iterator[raw.Statement]:
    fan_out = Tally(row.message.id for row in rows)
    by_count: dict[int, list[int]] = {}
    for message in messages:
        by_count.setdefault(fan_out[message.id], []).append(message.id)
    for count, ids in by_count.items():
        yield (
            f"UPDATE {waiting_messages.MESSAGES} SET state = %s, consumer_count = %s "
            f"WHERE id IN ({raw.listed(ids)})",
            [Message.State.DISPATCHED.value, count],
        )
