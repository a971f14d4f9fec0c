"""Find rows whose parent is gone, and bodies that are gone before their message."""

from collections.abc import Iterable
from typing import NamedTuple

from channels_app.models import Message, MessageBody, raw
from channels_app.rules import ids
from delivery.models import Attempt, Delivery
from delivery.rules.reconciliation import SENDABLE, Check, Place, Reconciliation
from delivery.steps.reconcile import key_ranges
from delivery.steps.reconcile.fan_out import Sums
from delivery.steps.reconcile.scope import ConfigSnapshot, KeyRange, Scope

MESSAGES = Message._meta.db_table
BODIES = MessageBody._meta.db_table
DELIVERIES = Delivery._meta.db_table
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


def check(
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


def walk(result: Reconciliation, table: Table, first: int, last: int) -> int:
    """Check the next SLICE rows from ``first`` on; return the key at which to continue.

    Returns a key beyond ``last`` when none are left. Call this inside a snapshot.
    """
    name, key, parent, parents, public = table
    slice_ = f"SELECT {key} AS id FROM {name} WHERE {key} BETWEEN %s AND %s ORDER BY {key} LIMIT %s"
    sql = f"SELECT MAX(id), COUNT(*) FROM ({slice_}) AS slice"
    end, number = raw.read(sql, [first, last, key_ranges.SLICE])[0]
    if not number:
        return last + 1
    sql = (
        f"SELECT {key} FROM {name} WHERE {key} BETWEEN %s AND %s AND NOT EXISTS "
        f"(SELECT 1 FROM {parents} AS p WHERE p.id = {name}.{parent})"
    )
    _note(result, public, raw.read(sql, [first, end]))
    return int(end) + 1 if number == key_ranges.SLICE else last + 1


def _note(result: Reconciliation, public: str, rows: Iterable[tuple[int, ...]]) -> None:
    for (number,) in rows:
        result.note(Check.ORPHANS, Place(), [ids.to_public(public, number)])
