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
from channels_app.database.raw import dialect
from channels_app.models import ConfigVersion, Consumer, Message, new_id, reseed_ids
from channels_app.registry.cache import config_cache
from delivery.core.lifecycle import ClaimedDelivery, DeliveryState, DirectClaim, Reason
from delivery.core.ordering import BEHIND
from delivery.core.recipients import Recipients
from delivery.models import ConsumerHealth, Counter, Delivery, PullWorker
from delivery.models.counter import MADE
from delivery.ordering import key_queue

SelectPayloads: TypeAlias = Callable[[Iterable[int]], raw.Statement]
"""Builds a query for the payloads of these messages."""
Choose: TypeAlias = Callable[[Mapping[int, Collection[int]]], Collection[int]]
"""Gets the consumers of each message, and returns the messages that go first."""
MESSAGES = Message._meta.db_table
MAX_SEEN = 256
"""Rows at which a scan of waiting messages stops; the backlog is then read by priority."""
FEW = 8
"""Most messages for which payloads are read in the same round trip. With more, reading payloads of
messages that another worker has locked costs more than a second round trip."""


class Accepted(NamedTuple):
    """A message to fan out, with its times as the text that its deliveries store."""

    id: int
    channel_id: int
    priority: int
    due_at: str
    expires_at: str | None
    event_type: str
    ordering_key: str
    accepted_at: str

    def is_due(self, now: str) -> bool:
        """Whether a delivery of it may be sent at ``now``."""
        # The database's clock set accepted_at, and ``now`` may be a little behind it.
        return self.due_at <= max(now, self.accepted_at) and not (
            self.expires_at and self.expires_at <= now
        )


class ScanResult(NamedTuple):
    """What one scan found, beginning with messages from wake-ups."""

    waiting: list[int]
    """Ids, as `MessageScan.first` returns them."""
    is_all: bool
    locked: list[Accepted]
    """Those of the waiting messages that this transaction has locked."""
    payload_rows: list[tuple[Any, ...]]


class Ranked(NamedTuple):
    """Some messages of a backlog, chosen by priority or age."""

    ids: list[int]
    """In ascending order."""
    is_alike: bool
    """Whether all messages that were read have one priority."""
    is_all: bool
    """Whether no more messages wait."""


class MessageScan(NamedTuple):
    """A query for up to ``limit`` accepted messages."""

    limit: int
    condition: str = ""
    values: tuple[str, ...] = ()

    def first(self) -> tuple[list[int], bool]:
        """Return ids of waiting messages, oldest first, and whether these are all of them.

        With more than ``limit`` messages priority decides. Returns no ids if this query cannot
        decide, because priorities differ or `MAX_SEEN` rows were found; `ranked` then can.
        """
        return self._cut(raw.read(*self._select_waiting()))

    def ranked(self, passed: int, *, oldest_first: bool) -> Ranked:
        """Return the messages after the first ``passed`` ones.

        Reads one short range for each priority, as a claim does; that pays only for a backlog.
        """
        most = passed + self.limit
        sql = dialect.union(
            f"SELECT id, priority FROM {MESSAGES} WHERE state = %s AND priority = {level:d}"
            f"{self.condition} ORDER BY id LIMIT {most + 1:d}"
            for level in range(10)
        )
        rows = raw.read(sql, [Message.State.ACCEPTED.value, *self.values] * 10)
        rows.sort(key=None if oldest_first else lambda row: (-row[1], row[0]))
        is_alike = len({priority for _, priority in rows}) < 2
        return Ranked(
            sorted([found for found, _ in rows[passed:most]]), is_alike, len(rows) <= most
        )

    def with_notified(
        self, notified: Iterable[int], select_payloads: SelectPayloads | None
    ) -> ScanResult:
        """Return what waits and lock what is free, with the payloads if there are few.

        For use inside a transaction. Takes one round trip where `first`, `lock`, the configuration
        version and ``select_payloads`` take four; one or two more if other messages wait as well.
        """
        ids = sorted(notified)[: self.limit]
        more = [select_payloads(ids)] if select_payloads and len(ids) <= FEW else []
        # The scan runs after the locks, so it sees each message accepted before a locked one.
        rows, scanned, version, *payload_rows = raw.read_all(
            [_locking(ids), self._select_waiting(), (ConfigVersion.CURRENT, []), *more]
        )
        waiting, is_all = self._cut(scanned)
        locked, number = _accepted(rows), ConfigVersion.of(version)
        if not is_all:
            chosen = set(waiting)
            locked = [it for it in locked if it.id in chosen]
        config_cache.refresh(number=number)
        if others := sorted(set(waiting).difference(ids)):
            # This refreshes the configuration again: consumers may have registered in between.
            locked = sorted([*locked, *lock(others)[0]])
        return ScanResult(waiting, is_all, locked, *(payload_rows or [[]]))

    def _select_waiting(self) -> raw.Statement:
        # Index order, so that the read ends at the limit.
        sql = f"SELECT id, priority FROM {MESSAGES} WHERE state = %s{self.condition}"
        values = [Message.State.ACCEPTED.value, *self.values, MAX_SEEN]
        return f"{sql} ORDER BY priority, id LIMIT %s", values

    def _cut(self, rows: Sequence[tuple[Any, ...]]) -> tuple[list[int], bool]:
        ids = sorted(found for found, _ in rows)
        if len(ids) <= self.limit and len(ids) < MAX_SEEN:
            return ids, True
        if len(ids) >= MAX_SEEN or rows[0][1] != rows[-1][1]:
            return [], False
        return ids[: self.limit], False


def of_channel(channel_id: int) -> tuple[list[int], bool]:
    """Return ids of waiting messages in one channel, oldest first, and whether these are all.

    Reads `MAX_SEEN` rows at most twice, however large the backlog. Of a larger one it looks only at
    the channel's newest messages.
    """
    accepted = Message.State.ACCEPTED.value
    rows = raw.read(
        f"SELECT id, channel_id FROM {MESSAGES} WHERE state = %s LIMIT {MAX_SEEN}", [accepted]
    )
    if len(rows) < MAX_SEEN:
        return sorted(found for found, owner in rows if owner == channel_id), True
    newest = raw.read(
        f"SELECT id, state FROM {MESSAGES} WHERE channel_id = %s ORDER BY id DESC LIMIT {MAX_SEEN}",
        [channel_id],
    )
    return sorted(found for found, state in newest if state == accepted), False


def are_waiting(ids: Iterable[int]) -> bool:
    """Whether one of these messages still waits; another process may be fanning it out."""
    sql = f"SELECT 1 FROM {MESSAGES} WHERE id IN ({raw.listed(ids)}) AND state = %s LIMIT 1"
    return bool(raw.read(sql, [Message.State.ACCEPTED.value]))


def lock(
    ids: Collection[int], select_payloads: SelectPayloads | None = None
) -> tuple[list[Accepted], list[tuple[Any, ...]]]:
    """Lock and return the messages that still wait and that no other process has locked.

    Also returns the payloads if there are few messages. Then refreshes the configuration, so that
    it includes each consumer that registered before one of the messages was accepted, and all
    consumers are read at one point in time.
    """
    more = [select_payloads(ids)] if select_payloads and len(ids) <= FEW else []
    statements = [_locking(ids), (ConfigVersion.CURRENT, []), *more]
    rows, version, *payload_rows = raw.read_all(statements)
    config_cache.refresh(number=ConfigVersion.of(version))
    return _accepted(rows), payload_rows[0] if payload_rows else []


def _locking(ids: Iterable[int]) -> raw.Statement:
    sql, values = _reading(ids)
    return f"{sql}{dialect.skip_locked}", values


def _reading(ids: Iterable[int]) -> raw.Statement:
    sql = (
        "SELECT state, id, channel_id, priority, CAST(due_at AS CHAR), CAST(expires_at AS CHAR), "
        "event_type, ordering_key, CAST(accepted_at AS CHAR) "
        # No condition on the state: it would make the query use the state's index.
        f"FROM {MESSAGES} WHERE id IN ({raw.listed(ids)}) ORDER BY id"
    )
    return sql, []


def _accepted(rows: Iterable[tuple[object, ...]]) -> list[Accepted]:
    accepted = Message.State.ACCEPTED.value
    return [Accepted._make(row) for state, *row in rows if state == accepted]


MAX_ROWS = 200
"""Deliveries that one transaction creates, unless a single message has more consumers. A more
urgent message waits until the transaction ends."""
RIVALS_S, RIVAL_PAUSE_S = 1.0, 0.002
"""Seconds a receiver waits for other processes' fan-outs, and between two checks."""
MAX_PASSED = 2_000
"""Messages that a fan-out skips because other processes hold them, or wait behind those in an
ordering key: as many as ten pumps hold at a time."""
NEVER = raw.text(BEHIND)
_NUMBERS = ("id", "message_id", "consumer_id", "channel_id", "priority")
_VALUES = ("due_at", "expires_at", "event_type", "ordering_key", "accepted_at")
QUEUED = raw.Insert(
    Delivery,
    numbers=_NUMBERS,
    values=_VALUES,
    same={"state": DeliveryState.QUEUED.value, "reason": Reason.ACCEPTED.value},
)
CLAIMED = raw.Insert(
    Delivery,
    numbers=(*_NUMBERS, "lease_owner"),
    values=_VALUES,
    same={
        "state": DeliveryState.IN_FLIGHT.value,
        "reason": Reason.CLAIMED.value,
        "attempt_count": 1,
        "version": 2,  # as if it had been queued first
    },
)


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
    message: Accepted
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
        made = _make(partial(_fan_out_notified, notified, scan, slot, claimer, select_payloads))
        if made.message_count or not made.more:
            return made
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
    if len(message_ids) > FEW:
        # Without locks: most of them belong to the backlog.
        message_ids = _choose(_accepted(raw.read(*_reading(message_ids))), choose)
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
    ids, is_all = of_channel(channel_id)
    if not ids:
        return
    if is_all:
        work = partial(_fan_out_messages, ids, len(ids), MessageScan(len(ids)), slot, None)
    else:
        work = partial(_fan_out_free, ids, slot)
    end = time.monotonic() + RIVALS_S
    while True:
        made = _make(work)
        yield made
        can_go_on = made.message_count > 0 or is_all
        if not (can_go_on and are_waiting(ids) and time.monotonic() < end):
            return
        if not made.message_count:
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
        made = _make(partial(_fan_out_messages, ids, len(ids), scan, slot, claimer))
        if made.message_count:
            return made
        return _run_oldest(scan, slot, claimer, scan.ranked(0, oldest_first=True).ids)
    return _run_backlog(scan, slot, claimer, oldest_first=oldest_first)


def _run_backlog(
    scan: MessageScan, slot: int, claimer: DirectClaim | None, *, oldest_first: bool
) -> FanoutResult:
    ids, is_alike, is_all = scan.ranked(0, oldest_first=oldest_first)
    if not (oldest_first or is_alike):
        made = _make(partial(_fan_out_urgent, ids, slot, claimer))
        if made.message_count:
            return replace(made, is_backlog=not is_all)
        ids = scan.ranked(0, oldest_first=True).ids
    return replace(_run_oldest(scan, slot, claimer, ids), is_backlog=not is_all)


def _run_oldest(
    scan: MessageScan, slot: int, claimer: DirectClaim | None, ids: list[int]
) -> FanoutResult:
    """Fan out the oldest messages, of which ``ids`` are the first."""
    passed, more = list[int](), False
    while ids:
        if len(passed) >= MAX_PASSED:
            return FanoutResult(more=True)
        passed += ids
        made = _make(partial(_fan_out_messages, passed, len(ids), scan, slot, claimer))
        if made.message_count or len(ids) < scan.limit:
            return made
        # Other processes hold all of these; more may wait behind them.
        more = more or made.more
        ids = scan.ranked(len(passed), oldest_first=True).ids
    return FanoutResult(more=more)


def _make(work: Callable[[], FanoutResult]) -> FanoutResult:
    made = transactions.run(work, on_collision=reseed_ids)
    failpoints.reach("after_claimed_fanout" if made.claimed else "after_fanout")
    return made


def _fan_out_messages(
    passed: list[int], found: int, scan: MessageScan, slot: int, claimer: DirectClaim | None
) -> FanoutResult:
    locked, _ = lock(passed[-found:])
    if not locked:
        return FanoutResult()
    made = _fan_out(key_queue.in_turn(locked, passed), slot, claimer)
    return replace(made, more=found == scan.limit or made.message_count < len(locked))


def _fan_out_free(ids: list[int], slot: int) -> FanoutResult:
    """Fan out a backlog's messages that may overtake others."""
    locked, _ = lock(ids)
    return _fan_out(_free(locked), slot, None)


def _free(locked: list[Accepted]) -> list[Accepted]:
    """Return messages that may overtake others; those of an ordering key keep their order."""
    channels = {view.channel_id for view in config_cache.ordered().values()}
    return [it for it in locked if not (it.ordering_key and it.channel_id in channels)]


def _fan_out_urgent(ids: list[int], slot: int, claimer: DirectClaim | None) -> FanoutResult:
    """Fan out a backlog's messages of the highest priority that may overtake others.

    Messages of an ordering key stay in order and wait for a fan-out by age. That follows at once if
    they are more than half of the messages found.
    """
    locked, _ = lock(ids)
    highest = max((it.priority for it in locked), default=0)
    locked = [it for it in locked if it.priority == highest]
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
    made = _fan_out(key_queue.in_turn(locked, waiting), slot, claimer)
    return replace(
        made, more=not is_all or made.message_count < len(waiting), payload_rows=payload_rows
    )


def _fan_out_alone(
    message_ids: Collection[int], slot: int, claimer: DirectClaim, select_payloads: SelectPayloads
) -> FanoutResult:
    locked, payload_rows = lock(message_ids, select_payloads)
    channels = {view.channel_id for view in config_cache.ordered().values()}
    if not locked or any(it.channel_id in channels for it in locked):
        return FanoutResult()
    return replace(_fan_out(locked, slot, claimer), payload_rows=payload_rows)


def _fan_out_chosen(
    message_ids: Collection[int],
    slot: int,
    claimer: DirectClaim,
    select_payloads: SelectPayloads,
    choose: Choose,
) -> FanoutResult:
    locked, payload_rows = lock(message_ids, select_payloads)
    chosen = set(_choose(locked, choose))
    made = _fan_out([it for it in locked if it.id in chosen], slot, claimer)
    return replace(made, payload_rows=payload_rows)


def _choose(
    messages: list[Accepted],
    choose: Choose,
) -> Collection[int]:
    channels = config_cache.channels_by_id()
    found = {}
    for it in _free(messages):
        channel = channels.get(it.channel_id)
        found[it.id] = [view.id for view in (channel.wanting(it.event_type) if channel else ())]
    return choose(found)


def _fan_out(locked: list[Accepted], slot: int, claimer: DirectClaim | None) -> FanoutResult:
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
    made = FanoutResult(
        message_count=len(messages),
        priority=max(it.priority for it in messages),
        oldest_accepted_at=raw.instant(min(it.accepted_at for it in messages)),
        due=by_consumer,
        claimed=claimed,
    )
    failpoints.reach("in_claimed_fanout" if claimed else "in_fanout")
    raw.execute_last(
        [
            *entered.statements,
            *QUEUED.statements(
                (_numbers(row), _values(row.message, row.message.due_at)) for row in queued
            ),
            *_insert_claimed(chosen.values(), claimer),
            *_mark_dispatched(messages, rows),
            *Counter.adding(_tally(queued, claimed), slot),
        ]
    )
    return made


def _deliveries(messages: list[Accepted]) -> tuple[list[Accepted], list[_NewDelivery]]:
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
    views = config_cache.consumers()
    pull_ids = (one for one in consumer_ids if views[one].mode == Consumer.Mode.PULL)
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
    allowances = claimer.allow({consumer_id: len(some) for consumer_id, some in due.items()})
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


def _values(message: Accepted, due_at: str) -> tuple[str | None, ...]:
    kind = message.event_type, message.ordering_key
    return due_at, message.expires_at, *kind, message.accepted_at


def _insert_claimed(
    chosen: Iterable[tuple[_NewDelivery, int]], claimer: DirectClaim | None
) -> Iterable[raw.Statement]:
    if claimer is None:
        return ()
    ends = {lease_ms: raw.text(claimer.end(lease_ms)) for _, lease_ms in chosen}
    return CLAIMED.statements(
        ((*_numbers(row), claimer.owner), _values(row.message, ends[lease_ms]))
        for row, lease_ms in chosen
    )


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
    messages: Sequence[Accepted], rows: Iterable[_NewDelivery]
) -> Iterator[raw.Statement]:
    fan_out = Tally(row.message.id for row in rows)
    by_count: dict[int, list[int]] = {}
    for message in messages:
        by_count.setdefault(fan_out[message.id], []).append(message.id)
    for count, ids in by_count.items():
        yield (
            f"UPDATE {MESSAGES} SET state = %s, consumer_count = %s "
            f"WHERE id IN ({raw.listed(ids)})",
            [Message.State.DISPATCHED.value, count],
        )


def _tally(
    queued: Iterable[_NewDelivery], claimed: Iterable[ClaimedDelivery]
) -> Tally[tuple[int, str]]:
    tally: Tally[tuple[int, str]] = Tally()
    states = (DeliveryState.QUEUED.value, queued), (DeliveryState.IN_FLIGHT.value, claimed)
    for state, rows in states:
        for consumer_id, count in Tally(row.consumer_id for row in rows).items():
            tally[consumer_id, state] = count
            tally[consumer_id, MADE] += count
    return tally
