"""Check that each accepted message was fanned out once to each matching consumer."""

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field

from channels_app.models import Message, raw
from channels_app.rules import ids
from delivery.models import Delivery, Pruned
from delivery.rules.reconciliation import SENDABLE, Check, Place, Reconciliation
from delivery.steps.reconcile.scope import ConfigSnapshot, KeyRange, ReconciledConsumer, Scope

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
        SELECT consumer_id, event_type, state FROM {DELIVERIES} AS d
        WHERE message_id BETWEEN %s AND %s{{narrowed}} ORDER BY message_id LIMIT %s
    ) AS slice GROUP BY consumer_id, event_type, state
"""
NOT_PRUNED = f"""m.id > COALESCE(
    (SELECT p.message_id FROM {Pruned._meta.db_table} AS p WHERE p.channel_id = m.channel_id), 0
)"""
FOUND = f"(SELECT COUNT(*) FROM {DELIVERIES} AS d WHERE d.message_id = m.id)"
OFF = f"""
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


def check(
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
    for message_id, channel_id in raw.read(OFF.format(narrowed=of_channels), ends):
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
