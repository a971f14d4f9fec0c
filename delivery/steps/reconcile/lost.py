"""Find messages of which only the idempotency key's record is left.

A record is written with its message, and deleted with it (steps/erase) or when its window closes.
Messages that retention deletes before that are below its mark.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from channels_app.models import IdempotencyRecord, Message, raw
from channels_app.rules import ids
from delivery.models import Pruned
from delivery.models.accounting import EVERY_CHANNEL
from delivery.rules.reconciliation import Check, Place, Reconciliation
from delivery.steps.reconcile import key_ranges
from delivery.steps.reconcile.scope import ConfigSnapshot, through

NEVER, FOREVER = "2000-01-01", "9999-12-31"
RECORDS = f"{IdempotencyRecord._meta.db_table}{{by_expiry}}"
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
        SELECT p.message_id FROM {Pruned._meta.db_table} AS p WHERE p.channel_id = {EVERY_CHANNEL}
    ), 0)
    AND NOT EXISTS (SELECT 1 FROM {Message._meta.db_table} AS m WHERE m.id = message_id)
"""


def spans(
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


def walk(result: Reconciliation, after: str, last: str, message_ids: tuple[int, int]) -> str:
    """Check the next SLICE records that expire after ``after``; return where to continue.

    Returns ``last`` when none are left. Records that expire at the same time are checked together:
    they are at most those of one transaction. Call this inside a snapshot.
    """
    by_expiry = through("idempotency_expiry")
    end, number = raw.read(NEXT.format(by_expiry=by_expiry), [after, last, key_ranges.SLICE])[0]
    if not number:
        return last
    rows = raw.read(LOST.format(by_expiry=by_expiry), [after, end, *message_ids])
    names = (ids.to_public(ids.MESSAGE, message_id) for (message_id,) in rows)
    result.note(Check.LOST, Place(), names)
    return str(end) if number == key_ranges.SLICE else last
