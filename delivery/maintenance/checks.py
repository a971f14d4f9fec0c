"""Find rows that contradict each other, range by range, without changing anything.

An idempotency record is written with its message, and deleted with it or when its window closes.
Messages that retention deletes before that are below its mark.

result, config = Reconciliation(most_ids=20), checks.ConfigSnapshot(grace)
while first <= scope.last:
    with transactions.snapshot():
        config.refresh()
        key_range = checks.next_key_range(scope, first)
        checks.check(result, scope, key_range, config)
    first = key_range.last + 1
"""

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from channels_app.conf import conf
from channels_app.core import ids, names
from channels_app.database import raw
from channels_app.database.raw import dialect
from channels_app.models import (
    Channel,
    ConfigVersion,
    Consumer,
    IdempotencyRecord,
    Message,
    MessageBody,
)
from delivery.core.lifecycle import DeliveryState
from delivery.core.reconciliation import SENDABLE, Check, Place, Reconciliation
from delivery.models import Attempt, ConsumerHealth, Delivery, RetentionMark
from delivery.models.reconciliation import EVERY_CHANNEL


@dataclass(frozen=True, slots=True)
class Scope:
    """A range of messages by their keys, which contain the time of creation."""

    first: int
    last: int
    before: datetime
    """Messages and deliveries that have waited since before this time are late."""
    channel_ids: frozenset[int] | None = None
    """None: all."""
    consumer_ids: frozenset[int] | None = None

    def narrowed(self, alias: str, *, to_consumers: bool = True) -> str:
        """Return the end of a WHERE clause that excludes other channels and consumers."""
        sql = ""
        if self.channel_ids is not None:
            sql += f" AND {alias}.channel_id IN ({raw.listed(self.channel_ids or {0})})"
        if to_consumers and self.consumer_ids is not None:
            sql += f" AND {alias}.consumer_id IN ({raw.listed(self.consumer_ids or {0})})"
        return sql

    def has(self, consumer_id: int) -> bool:
        """Whether this consumer is covered."""
        return self.consumer_ids is None or consumer_id in self.consumer_ids


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys of messages from ``first`` to ``last``, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ReconciledConsumer:
    """A consumer as the reconciliation uses it."""

    id: int
    client_id: str
    channel_id: int
    event_types: tuple[str, ...]
    is_retired: bool
    is_pushed: bool
    since: int
    """The first key whose message was fanned out with exactly these settings."""

    @property
    def place(self) -> Place:
        """Return the place of findings about it."""
        return Place(self.channel_id, self.id)

    def wants(self, event_type: str) -> bool:
        """Whether its filter matches this event type."""
        return names.matches(self.event_types, event_type)


class ReconciledChannel(NamedTuple):
    """A channel as the reconciliation uses it."""

    slug: str
    since: int
    """The first key created with its current settings."""
    window: timedelta
    """How long it remembers idempotency keys."""
    is_queue: bool
    """Whether each message goes to only one of its consumers."""


class ConfigSnapshot:
    """Channels and consumers, read again in each snapshot in which they have changed.

    Includes retired consumers, whose history remains.
    """

    def __init__(self, grace: timedelta) -> None:
        self._grace = grace
        self._number = -1
        self.channels: dict[int, ReconciledChannel] = {}
        self.consumers: dict[int, ReconciledConsumer] = {}

    def refresh(self) -> None:
        """Read changed settings. Call this inside each snapshot."""
        number = ConfigVersion.current()
        if number == self._number:
            return
        self._number = number
        names = ("id", "slug", "updated_at", "idempotency_window_s", "kind")
        channels = Channel.objects.values_list(*names)
        usual = conf().idempotency_window_s
        self.channels = {
            channel_id: ReconciledChannel(
                *(slug, self._settled(at), timedelta(seconds=window_s or usual)),
                is_queue=kind == Channel.Kind.QUEUE,
            )
            for channel_id, slug, at, window_s, kind in channels
        }
        self.consumers = {row.id: self._consumer(row) for row in Consumer.objects.order_by("id")}

    def _consumer(self, row: Consumer) -> ReconciledConsumer:
        return ReconciledConsumer(
            id=row.id,
            client_id=row.client_id,
            channel_id=row.channel_id,
            event_types=tuple(row.event_types),
            is_retired=row.state == Consumer.State.RETIRED,
            is_pushed=row.mode == Consumer.Mode.PUSH,
            since=self._settled(row.updated_at),
        )

    def slug(self, channel_id: int) -> str:
        """Return a channel's name; empty for none, and for a deleted one."""
        channel = self.channels.get(channel_id)
        return channel.slug if channel else ""

    def windows(self) -> set[timedelta]:
        """Return the distinct idempotency windows of all channels."""
        return {channel.window for channel in self.channels.values()}

    def _settled(self, changed_at: datetime) -> int:
        # Hosts' clocks differ, and a message that is being fanned out while its consumer changes
        # may use the old or the new settings.
        return ids.id_at(changed_at + self._grace)


SLICE = 2000
"""Messages, and deliveries, that one query reads."""
_MESSAGE_RANGE = f"""
    SELECT MIN(id), MAX(id), COUNT(*) FROM (
        SELECT id FROM {Message._meta.db_table} WHERE id BETWEEN %s AND %s ORDER BY id LIMIT %s
    ) AS slice
"""
_DELIVERY_RANGE = f"""
    SELECT MIN(id), MAX(id), COUNT(*) FROM (
        SELECT message_id AS id FROM {Delivery._meta.db_table}
        WHERE message_id BETWEEN %s AND %s ORDER BY message_id LIMIT %s
    ) AS slice
"""
"""Read separately: a message may have thousands of them, and they may exist without it."""

NEWEST = f"""
    SELECT COALESCE((SELECT MAX(id) FROM {Message._meta.db_table}), 0),
        COALESCE((SELECT MAX(message_id) FROM {Delivery._meta.db_table}), 0)
"""


def newest() -> int:
    """Return the highest existing key: later rows are left to the next reconciliation."""
    message_id, owner_id = raw.read(NEWEST)[0]
    return max(int(message_id), int(owner_id))


def next_key_range(scope: Scope, first: int) -> KeyRange:
    """Return the range that begins at ``first``: up to SLICE messages and SLICE deliveries.

    A message with more deliveries than that is a range by itself.
    """
    _, last_message, messages = raw.read(_MESSAGE_RANGE, [first, scope.last, SLICE])[0]
    first_owner, last_owner, deliveries = raw.read(_DELIVERY_RANGE, [first, scope.last, SLICE])[0]
    last = scope.last
    if messages == SLICE:
        last = last_message
    if deliveries == SLICE:
        # The last message may have more deliveries than were read.
        whole = last_owner if first_owner == last_owner else last_owner - 1
        last = min(last, whole)
    return KeyRange(first, last)


DISPATCHED = Message.State.DISPATCHED.value
NO_END = 1 << 40
"""Greater than the rows of any range: this LIMIT keeps the range a subquery, which is then
summed."""
MESSAGES = Message._meta.db_table
DELIVERIES = Delivery._meta.db_table

SENT = f"""
    SELECT channel_id, event_type, state, COUNT(*), SUM(consumer_count) FROM (
        SELECT channel_id, event_type, state, consumer_count FROM {MESSAGES} AS m
        WHERE id BETWEEN %s AND %s{{narrowed}} ORDER BY id LIMIT %s
    ) AS slice GROUP BY channel_id, event_type, state
"""
MADE = f"""
    SELECT consumer_id, event_type, state, COUNT(*) FROM (
        SELECT consumer_id, event_type, state
        FROM {DELIVERIES} AS d{dialect.hint("one_delivery_each")}
        WHERE message_id BETWEEN %s AND %s{{narrowed}} ORDER BY message_id LIMIT %s
    ) AS slice GROUP BY consumer_id, event_type, state
"""
MARKS = RetentionMark._meta.db_table
NOT_PRUNED = f"""m.id > COALESCE(
    (SELECT p.message_id FROM {MARKS} AS p WHERE p.channel_id = m.channel_id), 0
)"""
FOUND = f"(SELECT COUNT(*) FROM {DELIVERIES} AS d WHERE d.message_id = m.id)"
_INCOMPLETE = f"""
    SELECT m.id, m.channel_id FROM {MESSAGES} AS m
    WHERE m.id BETWEEN %s AND %s{{narrowed}}
    AND m.consumer_count <> {FOUND} AND (m.consumer_count < {FOUND} OR {NOT_PRUNED})
"""
LACKING = f"""
    SELECT m.id FROM {MESSAGES} AS m
    WHERE m.id BETWEEN %s AND %s AND m.channel_id = %s AND m.state = '{DISPATCHED}'
    AND m.event_type IN ({{holes}}) AND NOT EXISTS (
        SELECT 1 FROM {DELIVERIES} AS d WHERE d.message_id = m.id AND d.consumer_id = %s
    ) AND {NOT_PRUNED}
"""


@dataclass(slots=True)
class Sums:
    """The sums of one range, for the checks that follow."""

    channel_ids: set[int] = field(default_factory=set)
    consumer_ids: set[int] = field(default_factory=set)
    recorded: int = 0
    made: int = 0
    off: int = 0
    sendable: bool = False
    """Whether any of its messages may still be sent."""

    @property
    def agree(self) -> bool:
        """Whether the deliveries are exactly those that messages record."""
        return self.recorded == self.made and not self.off


def check_fan_out(
    result: Reconciliation, scope: Scope, key_range: KeyRange, config: ConfigSnapshot
) -> Sums:
    """Sum up one range and record discrepancies. Call this inside a snapshot."""
    ends = [key_range.first, key_range.last]
    of_channels = scope.narrowed("m", to_consumers=False)
    sums = Sums()
    sent: Tally[tuple[int, str]] = Tally()
    for channel_id, event_type, state, number, recorded in raw.read(
        SENT.format(narrowed=of_channels), [*ends, NO_END]
    ):
        result.count_messages(channel_id, state, number, int(recorded))
        sums.channel_ids.add(channel_id)
        sums.recorded += int(recorded)
        sums.sendable |= state == Message.State.ACCEPTED
        if state == DISPATCHED:
            sent[channel_id, event_type] += number
    made: Tally[tuple[int, str]] = Tally()
    for consumer_id, event_type, state, number in raw.read(
        MADE.format(narrowed=scope.narrowed("d")), [*ends, NO_END]
    ):
        result.count_deliveries(consumer_id, state, number)
        sums.consumer_ids.add(consumer_id)
        sums.made += number
        sums.sendable |= state in SENDABLE
        made[consumer_id, event_type] += number
    for message_id, channel_id in raw.read(_INCOMPLETE.format(narrowed=of_channels), ends):
        result.note(Check.FAN_OUT, Place(channel_id), [_public(message_id)])
        sums.off += 1
    for consumer in config.consumers.values():
        if scope.has(consumer.id) and not consumer.is_retired:
            _compare(result, key_range, consumer, config, sent, made)
    return sums


def _compare(
    result: Reconciliation,
    key_range: KeyRange,
    consumer: ReconciledConsumer,
    config: ConfigSnapshot,
    sent: Tally[tuple[int, str]],
    made: Tally[tuple[int, str]],
) -> None:
    channel = config.channels.get(consumer.channel_id)
    if consumer.since > key_range.last or (channel is not None and channel.is_queue):
        return
    wanted = [
        event_type
        for channel_id, event_type in sent
        if channel_id == consumer.channel_id and consumer.wants(event_type)
    ]
    # If the settings hold for the whole range, the sums suffice, and no row has to be read.
    if consumer.since <= key_range.first:
        wanted = [it for it in wanted if made[consumer.id, it] < sent[consumer.channel_id, it]]
    if wanted:
        lacking = list(_lacking(key_range, consumer, wanted))
        if lacking:
            result.miss(consumer.place, lacking)


def _lacking(
    key_range: KeyRange, consumer: ReconciledConsumer, event_types: list[str]
) -> Iterable[str]:
    rows = raw.read(
        LACKING.format(holes=", ".join(["%s"] * len(event_types))),
        [
            *(max(key_range.first, consumer.since), key_range.last, consumer.channel_id),
            *(*event_types, consumer.id),
        ],
    )
    return (_public(message_id) for (message_id,) in rows)


def _public(message_id: int) -> str:
    return ids.to_public(ids.MESSAGE, message_id)


BODIES = MessageBody._meta.db_table

ATTEMPTS = Attempt._meta.db_table
STATES = ", ".join(f"'{state}'" for state in sorted(SENDABLE))

BODILESS = f"""
    SELECT m.id, m.channel_id FROM {MESSAGES} AS m
    WHERE m.id BETWEEN %s AND %s{{narrowed}} AND (
        m.state = '{Message.State.ACCEPTED.value}' OR EXISTS (
            SELECT 1 FROM {DELIVERIES} AS d WHERE d.message_id = m.id AND d.state IN ({STATES})
        )
    ) AND NOT EXISTS (SELECT 1 FROM {BODIES} AS b WHERE b.message_id = m.id)
"""
MESSAGELESS = f"""
    SELECT d.id FROM {DELIVERIES} AS d
    WHERE d.message_id BETWEEN %s AND %s{{narrowed}}
    AND NOT EXISTS (SELECT 1 FROM {MESSAGES} AS m WHERE m.id = d.message_id)
"""
CHANNELLESS = f"""
    SELECT m.id FROM {MESSAGES} AS m WHERE m.id BETWEEN %s AND %s AND m.channel_id IN ({{unknown}})
"""
CONSUMERLESS = f"""
    SELECT d.id FROM {DELIVERIES} AS d
    WHERE d.message_id BETWEEN %s AND %s AND d.consumer_id IN ({{unknown}})
"""


class Table(NamedTuple):
    """A large table to read by its own key, because no index leads to its orphans."""

    name: str
    key: str
    parent: str
    """The column that has the parent's ``id``."""
    parents: str
    public: str
    """Prefix of the public ids of its rows."""


TABLES = (
    Table(ATTEMPTS, "id", "delivery_id", DELIVERIES, ids.ATTEMPT),
    Table(BODIES, "message_id", "message_id", MESSAGES, ids.MESSAGE),
)


def check_orphans(
    result: Reconciliation, scope: Scope, key_range: KeyRange, config: ConfigSnapshot, sums: Sums
) -> None:
    """Record rows of one range without a parent or a body. Call this inside a snapshot."""
    ends = [key_range.first, key_range.last]
    if sums.sendable:
        sql = BODILESS.format(narrowed=scope.narrowed("m", to_consumers=False))
        for message_id, channel_id in raw.read(sql, ends):
            result.note(Check.BODIES, Place(channel_id), [ids.to_public(ids.MESSAGE, message_id)])
    if not sums.agree:
        rows = raw.read(MESSAGELESS.format(narrowed=scope.narrowed("d")), ends)
        _note(result, ids.DELIVERY, rows)
    if unknown := sums.channel_ids - config.channels.keys():
        sql = CHANNELLESS.format(unknown=raw.listed(unknown))
        _note(result, ids.MESSAGE, raw.read(sql, ends))
    if unknown := sums.consumer_ids - config.consumers.keys():
        sql = CONSUMERLESS.format(unknown=raw.listed(unknown))
        _note(result, ids.DELIVERY, raw.read(sql, ends))


def find_orphans(result: Reconciliation, table: Table, first: int, last: int) -> int:
    """Check the next SLICE rows from ``first`` on; return the key at which to continue.

    Returns a key beyond ``last`` when none are left. Call this inside a snapshot.
    """
    name, key, parent, parents, public = table
    slice_ = f"SELECT {key} AS id FROM {name} WHERE {key} BETWEEN %s AND %s ORDER BY {key} LIMIT %s"
    sql = f"SELECT MAX(id), COUNT(*) FROM ({slice_}) AS slice"
    end, number = raw.read(sql, [first, last, SLICE])[0]
    if not number:
        return last + 1
    sql = (
        f"SELECT {key} FROM {name} WHERE {key} BETWEEN %s AND %s AND NOT EXISTS "
        f"(SELECT 1 FROM {parents} AS p WHERE p.id = {name}.{parent})"
    )
    _note(result, public, raw.read(sql, [first, end]))
    return int(end) + 1 if number == SLICE else last + 1


def _note(result: Reconciliation, public: str, rows: Iterable[tuple[int, ...]]) -> None:
    for (number,) in rows:
        result.note(Check.ORPHANS, Place(), [ids.to_public(public, number)])


# An open attempt is written when it ends. No number occurs twice in a history
# (one_attempt_per_number), so if as many are stored as are counted, and none lie outside, all
# exist.
OPEN = f"(d.state = '{DeliveryState.IN_FLIGHT.value}')"
_MISCOUNTED = f"""
    SELECT d.id, d.channel_id, d.consumer_id FROM {Delivery._meta.db_table} AS d
    WHERE d.message_id BETWEEN %s AND %s{{narrowed}} AND (
        d.attempt_count <> {OPEN} + (
            SELECT COUNT(*) FROM {Attempt._meta.db_table} AS a WHERE a.delivery_id = d.id
        ) OR EXISTS (
            SELECT 1 FROM {Attempt._meta.db_table} AS a WHERE a.delivery_id = d.id
            AND (a.number = 0 OR a.number + {OPEN} > d.attempt_count)
        )
    )
"""


def check_attempts(result: Reconciliation, scope: Scope, key_range: KeyRange) -> None:
    """Record deliveries of one range with a wrong history. Call this inside a snapshot."""
    rows = raw.read(
        _MISCOUNTED.format(narrowed=scope.narrowed("d")),
        [key_range.first, key_range.last],
    )
    for delivery_id, channel_id, consumer_id in rows:
        place = Place(channel_id, consumer_id)
        result.note(Check.ATTEMPTS, place, [ids.to_public(ids.DELIVERY, delivery_id)])


MAX_ROWS = 1000
"""Most rows reported at once: without running pumps there may be millions."""
CONSUMERS = 200
"""Consumers in one statement."""
TAKEN = f"('{DeliveryState.IN_FLIGHT.value}', '{DeliveryState.AWAITING_ACK.value}')"
_UNSENDABLE = "2000-01-01"
"""Finished rows have no ``due_at``: without a lower bound the index would read all of them."""
ACCEPTED = f"""
    SELECT id, channel_id FROM {Message._meta.db_table} AS m{dialect.forced("message_state")}
    WHERE state = '{Message.State.ACCEPTED.value}' AND id BETWEEN %s AND %s
    AND accepted_at < %s{{narrowed}} ORDER BY id LIMIT %s
"""
LEASES = f"""
    SELECT id, channel_id, consumer_id
    FROM {Delivery._meta.db_table}{dialect.forced("delivery_list")}
    WHERE consumer_id IN ({{consumers}}) AND state IN {TAKEN}
    AND (due_at < %s OR state = '{DeliveryState.IN_FLIGHT.value}' AND due_at > %s) LIMIT %s
"""
DUE = f"""
    SELECT id FROM {Delivery._meta.db_table}{dialect.forced("delivery_claim")}
    WHERE consumer_id = %s AND priority IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    AND due_at > '{_UNSENDABLE}' AND due_at <= %s LIMIT %s
"""


def late_messages(result: Reconciliation, scope: Scope) -> None:
    """Record messages that are not fanned out."""
    rows = raw.read(
        ACCEPTED.format(narrowed=scope.narrowed("m", to_consumers=False)),
        [scope.first, scope.last, raw.text(scope.before), MAX_ROWS],
    )
    for message_id, channel_id in rows:
        name = ids.to_public(ids.MESSAGE, message_id)
        result.note(Check.UNDISPATCHED, Place(channel_id), [name])


def late_leases(
    result: Reconciliation, consumer_ids: Collection[int], *, before: datetime, latest: datetime
) -> None:
    """Record leases that ended ``before``, or end after ``latest``."""
    for some in _groups(consumer_ids):
        rows = raw.read(
            LEASES.format(consumers=raw.listed(some)),
            [raw.text(before), raw.text(latest), MAX_ROWS],
        )
        for delivery_id, channel_id, consumer_id in rows:
            name = ids.to_public(ids.DELIVERY, delivery_id)
            result.note(Check.LEASES, Place(channel_id, consumer_id), [name])


def free(consumer_ids: Collection[int], now: datetime) -> list[int]:
    """Return consumers that neither their circuit nor a requested pause holds back."""
    rows = ConsumerHealth.objects.filter(consumer_id__in=list(consumer_ids))
    held = {
        row.consumer_id
        for row in rows
        if row.circuit != ConsumerHealth.Circuit.CLOSED or (row.slow_until or now) > now
    }
    return [consumer_id for consumer_id in consumer_ids if consumer_id not in held]


def late_deliveries(result: Reconciliation, place: Place, before: datetime) -> None:
    """Record deliveries that have been due since before this time."""
    rows = raw.read(DUE, [place.consumer_id, raw.text(before), MAX_ROWS])
    result.note(Check.LATE, place, (ids.to_public(ids.DELIVERY, row[0]) for row in rows))


def _groups(consumer_ids: Collection[int]) -> Iterator[list[int]]:
    everyone = sorted(consumer_ids)
    for start in range(0, len(everyone), CONSUMERS):
        yield everyone[start : start + CONSUMERS]


NEVER, FOREVER = "2000-01-01", "9999-12-31"
RECORDS = f"{IdempotencyRecord._meta.db_table}{dialect.forced('idempotency_expiry')}"
NEXT = f"""
    SELECT CAST(MAX(expires_at) AS CHAR), COUNT(*) FROM (
        SELECT expires_at FROM {RECORDS}
        WHERE expires_at > %s AND expires_at <= %s ORDER BY expires_at LIMIT %s
    ) AS slice
"""
LOST = f"""
    SELECT message_id FROM {RECORDS}
    WHERE expires_at > %s AND expires_at <= %s AND message_id BETWEEN %s AND %s
    AND message_id > COALESCE((
        SELECT p.message_id FROM {MARKS} AS p WHERE p.channel_id = {EVERY_CHANNEL}
    ), 0)
    AND NOT EXISTS (SELECT 1 FROM {Message._meta.db_table} AS m WHERE m.id = message_id)
"""


def lost_spans(
    config: ConfigSnapshot, since: datetime | None, until: datetime, slack: timedelta
) -> Iterator[tuple[str, str]]:
    """Yield when records of messages of that time expire: after the first time, up to the second.

    A channel's window may have been different then: only a reconciliation without a lower bound
    sees every record.
    """
    if since is None:
        yield NEVER, FOREVER
        return
    seen = NEVER
    for window in sorted(config.windows()):
        last = raw.text(until + window + slack)
        yield max(seen, raw.text(since + window - slack)), last
        seen = last


def find_lost(result: Reconciliation, after: str, last: str, message_ids: tuple[int, int]) -> str:
    """Check the next SLICE records that expire after ``after``; return where to continue.

    Returns ``last`` when none are left. Records that expire at the same time are checked together:
    they are at most those of one transaction. Call this inside a snapshot.
    """
    end, number = raw.read(NEXT, [after, last, SLICE])[0]
    if not number:
        return last
    rows = raw.read(LOST, [after, end, *message_ids])
    names = (ids.to_public(ids.MESSAGE, message_id) for (message_id,) in rows)
    result.note(Check.LOST, Place(), names)
    return str(end) if number == SLICE else last


def check(
    result: Reconciliation, scope: Scope, key_range: KeyRange, config: ConfigSnapshot
) -> None:
    """Run all checks on one range of messages. Call this inside a snapshot."""
    sums = check_fan_out(result, scope, key_range, config)
    check_orphans(result, scope, key_range, config, sums)
    check_attempts(result, scope, key_range)
