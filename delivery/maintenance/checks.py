"""Find rows that contradict each other, range by range, without changing anything.

An idempotency record is written with its message, and deleted with it or when its window closes.
Messages that retention deletes before that are below its mark.

result, config = Reconciliation(most_ids=20), ConfigSnapshot(grace)
while first <= scope.last:
    with transactions.snapshot():
        config.refresh()
        key_range = next_key_range(scope, first)
        checks.check(result, scope, key_range, config)
    first = key_range.last + 1
"""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from channels_app.core import ids
from channels_app.database import raw
from channels_app.database.raw import dialect
from channels_app.models import IdempotencyRecord, Message, MessageBody
from delivery.core.lifecycle import DeliveryState
from delivery.core.reconciliation import SENDABLE, Check, MismatchPlace, Reconciliation
from delivery.maintenance import reconciliation_scope
from delivery.maintenance.reconciliation_scope import (
    ConfigSnapshot,
    MessageRange,
    ReconciledConsumer,
    Scope,
)
from delivery.models import Attempt, Delivery, RetentionMark
from delivery.models.reconciliation import EVERY_CHANNEL

DISPATCHED = Message.State.DISPATCHED.value
NO_END = 1 << 40
"""Greater than the rows of any range: this LIMIT keeps the range a subquery, which is then
summed."""
MESSAGES = Message._meta.db_table
DELIVERIES = Delivery._meta.db_table
BODIES = MessageBody._meta.db_table
ATTEMPTS = Attempt._meta.db_table
MARKS = RetentionMark._meta.db_table
STATES = ", ".join(f"'{state}'" for state in sorted(SENDABLE))
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


class OrphanTable(NamedTuple):
    """A large table to read by its own key, because no index leads to its orphans."""

    name: str
    key: str
    parent: str
    """The column that has the parent's ``id``."""
    parents: str
    public: str
    """Prefix of the public ids of its rows."""


TABLES = (
    OrphanTable(ATTEMPTS, "id", "delivery_id", DELIVERIES, ids.ATTEMPT),
    OrphanTable(BODIES, "message_id", "message_id", MESSAGES, ids.MESSAGE),
)


@dataclass(slots=True)
class Sums:
    """The sums of one range, for the checks that follow."""

    channel_ids: set[int] = field(default_factory=set)
    consumer_ids: set[int] = field(default_factory=set)
    recorded: int = 0
    created: int = 0
    off: int = 0
    sendable: bool = False
    """Whether any of its messages may still be sent."""

    @property
    def agree(self) -> bool:
        """Whether the deliveries are exactly those that messages record."""
        return self.recorded == self.created and not self.off


def check(
    result: Reconciliation, scope: Scope, key_range: MessageRange, config: ConfigSnapshot
) -> None:
    """Run all checks on one range of messages. Call this inside a snapshot."""
    sums = check_fan_out(result, scope, key_range, config)
    check_orphans(result, scope, key_range, config, sums)
    check_attempts(result, scope, key_range)


def check_fan_out(
    result: Reconciliation, scope: Scope, key_range: MessageRange, config: ConfigSnapshot
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
    created: Tally[tuple[int, str]] = Tally()
    for consumer_id, event_type, state, number in raw.read(
        MADE.format(narrowed=scope.narrowed("d")), [*ends, NO_END]
    ):
        result.count_deliveries(consumer_id, state, number)
        sums.consumer_ids.add(consumer_id)
        sums.created += number
        sums.sendable |= state in SENDABLE
        created[consumer_id, event_type] += number
    for message_id, channel_id in raw.read(_INCOMPLETE.format(narrowed=of_channels), ends):
        result.note(Check.FAN_OUT, MismatchPlace(channel_id), [_public(message_id)])
        sums.off += 1
    for consumer in config.consumers.values():
        if scope.has(consumer.id) and not consumer.is_retired:
            _compare(result, key_range, consumer, config, sent, created)
    return sums


def check_orphans(
    result: Reconciliation,
    scope: Scope,
    key_range: MessageRange,
    config: ConfigSnapshot,
    sums: Sums,
) -> None:
    """Record rows of one range without a parent or a body. Call this inside a snapshot."""
    ends = [key_range.first, key_range.last]
    if sums.sendable:
        sql = BODILESS.format(narrowed=scope.narrowed("m", to_consumers=False))
        for message_id, channel_id in raw.read(sql, ends):
            result.note(
                Check.BODIES, MismatchPlace(channel_id), [ids.to_public(ids.MESSAGE, message_id)]
            )
    if not sums.agree:
        rows = raw.read(MESSAGELESS.format(narrowed=scope.narrowed("d")), ends)
        _note(result, ids.DELIVERY, rows)
    if unknown := sums.channel_ids - config.channels.keys():
        sql = CHANNELLESS.format(unknown=raw.listed(unknown))
        _note(result, ids.MESSAGE, raw.read(sql, ends))
    if unknown := sums.consumer_ids - config.consumers.keys():
        sql = CONSUMERLESS.format(unknown=raw.listed(unknown))
        _note(result, ids.DELIVERY, raw.read(sql, ends))


def check_attempts(result: Reconciliation, scope: Scope, key_range: MessageRange) -> None:
    """Record deliveries of one range with a wrong history. Call this inside a snapshot."""
    rows = raw.read(
        _MISCOUNTED.format(narrowed=scope.narrowed("d")),
        [key_range.first, key_range.last],
    )
    for delivery_id, channel_id, consumer_id in rows:
        place = MismatchPlace(channel_id, consumer_id)
        result.note(Check.ATTEMPTS, place, [ids.to_public(ids.DELIVERY, delivery_id)])


def find_orphans(result: Reconciliation, table: OrphanTable, first: int, last: int) -> int:
    """Check the next SLICE rows from ``first`` on; return the key at which to continue.

    Returns a key beyond ``last`` when none are left. Call this inside a snapshot.
    """
    name, key, parent, parents, public = table
    slice_ = f"SELECT {key} AS id FROM {name} WHERE {key} BETWEEN %s AND %s ORDER BY {key} LIMIT %s"
    sql = f"SELECT MAX(id), COUNT(*) FROM ({slice_}) AS slice"
    end, number = raw.read(sql, [first, last, reconciliation_scope.SLICE])[0]
    if not number:
        return last + 1
    sql = (
        f"SELECT {key} FROM {name} WHERE {key} BETWEEN %s AND %s AND NOT EXISTS "
        f"(SELECT 1 FROM {parents} AS p WHERE p.id = {name}.{parent})"
    )
    _note(result, public, raw.read(sql, [first, end]))
    return int(end) + 1 if number == reconciliation_scope.SLICE else last + 1


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
    end, number = raw.read(NEXT, [after, last, reconciliation_scope.SLICE])[0]
    if not number:
        return last
    rows = raw.read(LOST, [after, end, *message_ids])
    names = (ids.to_public(ids.MESSAGE, message_id) for (message_id,) in rows)
    result.note(Check.LOST, MismatchPlace(), names)
    return str(end) if number == reconciliation_scope.SLICE else last


def _compare(
    result: Reconciliation,
    key_range: MessageRange,
    consumer: ReconciledConsumer,
    config: ConfigSnapshot,
    sent: Tally[tuple[int, str]],
    created: Tally[tuple[int, str]],
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
        wanted = [
            event_type
            for event_type in wanted
            if created[consumer.id, event_type] < sent[consumer.channel_id, event_type]
        ]
    if wanted:
        lacking = list(_lacking(key_range, consumer, wanted))
        if lacking:
            result.miss(consumer.place, lacking)


def _lacking(
    key_range: MessageRange, consumer: ReconciledConsumer, event_types: list[str]
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


def _note(result: Reconciliation, public: str, rows: Iterable[tuple[int, ...]]) -> None:
    for (number,) in rows:
        result.note(Check.ORPHANS, MismatchPlace(), [ids.to_public(public, number)])
