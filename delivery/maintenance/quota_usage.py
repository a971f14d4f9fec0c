"""Count each channel's and team's waiting messages for their quotas, and store the result.

A message waits until it is fanned out and each of its deliveries has ended. It counts once, however
many consumers it waits for. The count reads only waiting rows, in short queries along an index: its
duration grows with them, and it blocks no other process.
"""

import logging
import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db import transaction

from channels_app.conf import conf
from channels_app.core.rate_limits import Quota, Usage
from channels_app.database import raw
from channels_app.database.raw import dialect
from channels_app.ingest.storage import disks
from channels_app.models import Channel, Consumer, Message, Producer, QuotaUsage, Team
from delivery.conf import HOST
from delivery.core import notifications
from delivery.core.health_status import NotificationKind
from delivery.models import Delivery, Notification
from delivery.models.counter import OPEN

logger = logging.getLogger(__name__)

DISK = QuotaUsage.Scope.DISK.value, zlib.crc32(HOST.encode())
MIB = 1024**2
KIND = {
    notifications.QUOTA_OK: NotificationKind.LIMIT_OK.value,
    notifications.QUOTA_NEARLY: NotificationKind.LIMIT_NEAR.value,
    notifications.QUOTA_FULL: NotificationKind.LIMIT_FULL.value,
}
SLICE = 2000
"""Rows that one query reads."""
_MESSAGES, _DELIVERIES = Message._meta.db_table, Delivery._meta.db_table
_CONSUMERS = Consumer._meta.db_table
_OPEN = ", ".join([f"'{state}'" for state in OPEN])
_ACCEPTED = f"""
    SELECT channel_id, producer_id, COUNT(*), SUM(body_bytes), MAX(id) FROM (
        SELECT id, channel_id, producer_id, body_bytes
        FROM {_MESSAGES}{dialect.hint("message_state")}
        WHERE state = '{Message.State.ACCEPTED.value}' AND id > %s ORDER BY id LIMIT %s
    ) AS slice GROUP BY channel_id, producer_id
"""
# One subquery per state: MariaDB would read all history for EXISTS or for a list of states.
_HAS = f"(SELECT 1 FROM {_DELIVERIES} d WHERE d.consumer_id = c.id AND d.state = '%s' LIMIT 1)"
_BUSY = f"SELECT id FROM {_CONSUMERS} c WHERE " + " OR ".join(
    [f"{_HAS % state} IS NOT NULL" for state in OPEN]
)
# Each message is counted at the first of the consumers that it waits for.
_DELIVERED = f"""
    SELECT m.channel_id, m.producer_id, SUM(is_first), SUM(is_first * m.body_bytes), MAX(last_id)
    FROM (
        SELECT d.id AS last_id, d.message_id, NOT EXISTS (
            SELECT 1 FROM {_DELIVERIES} e WHERE e.message_id = d.message_id
            AND e.consumer_id < %s AND e.state IN ({_OPEN})
        ) AS is_first
        FROM {_DELIVERIES} d{dialect.hint("delivery_list")}
        WHERE d.consumer_id = %s AND d.state = %s AND d.id > %s ORDER BY d.id LIMIT %s
    ) AS slice LEFT JOIN {_MESSAGES} m ON m.id = slice.message_id
    GROUP BY m.channel_id, m.producer_id
"""


def newest() -> int:
    """Return the key of the newest message, which changes when a message is accepted."""
    rows = raw.read(f"SELECT MAX(id) FROM {_MESSAGES}")
    return rows[0][0] or 0


def name_of(row: QuotaUsage) -> str:
    """Return its scope and the name of its owner."""
    if row.scope == QuotaUsage.Scope.DISK:
        return f"disk {row.owner_id}"
    kind = Channel if row.scope == QuotaUsage.Scope.CHANNEL else Team
    slug = kind.objects.filter(pk=row.owner_id).values_list("slug", flat=True).first()
    return f"{row.scope} {slug or row.owner_id}"


def is_any_full() -> bool:
    """Whether messages were rejected at the time of the last count."""
    return QuotaUsage.objects.filter(level=notifications.QUOTA_FULL).exists()


def limits() -> dict[tuple[str, int], Quota]:
    """Return the limit of each channel and team."""
    channels = Channel.objects.only("id", "max_waiting_messages", "max_waiting_bytes")
    teams = Team.objects.only("id", "max_waiting_messages", "max_waiting_bytes")
    default = conf()
    quotas = {("channel", row.pk): row.quota(default.channel_quota) for row in channels}
    return quotas | {("team", row.pk): row.quota(default.team_quota) for row in teams}


def largest_shares() -> dict[str, float]:
    """Return the largest used share of a limit, over all channels and over all teams."""
    most = limits()
    shares = {"channel": 0.0, "team": 0.0}
    for row in QuotaUsage.objects.filter(scope__in=shares, messages__gt=0):
        share = most.get((row.scope, row.owner_id), Quota()).share(row.usage)
        shares[row.scope] = max(shares[row.scope], share)
    return shares


def count(now: datetime) -> Iterator[int]:
    """Count in short steps, and store the result with the last one; yields zeros, then 1.

    Messages accepted during the count may be counted or not; those that change state may be missed.
    """
    usages: dict[tuple[int, int | None], Usage] = {}
    last = 0
    while rows := raw.read(_ACCEPTED, [last, SLICE]):
        last = _add(usages, rows)
        yield 0
    for (consumer_id,) in raw.read(_BUSY):
        # In the order in which deliveries change state.
        for state in OPEN:
            last = 0
            while rows := raw.read(_DELIVERED, [consumer_id, consumer_id, state, last, SLICE]):
                last = _add(usages, rows)
                yield 0
    yield _keep(_sums(usages), now)


def _add(usages: dict[tuple[int, int | None], Usage], rows: list[tuple[Any, ...]]) -> int:
    """Add the rows; return their last key."""
    for channel_id, producer_id, messages, size, _ in rows:
        if channel_id is None:  # deliveries whose message is gone
            continue
        key = channel_id, producer_id
        usages[key] = usages.get(key, Usage()) + Usage(int(messages), int(size or 0))
    return max(int(row[-1]) for row in rows)


def _sums(usages: dict[tuple[int, int | None], Usage]) -> dict[tuple[str, int], Usage]:
    teams = dict(Producer.objects.exclude(team=None).values_list("id", "team_id"))
    sums: dict[tuple[str, int], Usage] = {(QuotaUsage.Scope.ALL.value, 0): Usage()}
    for (channel_id, producer_id), usage in usages.items():
        owners = [(QuotaUsage.Scope.ALL.value, 0), (QuotaUsage.Scope.CHANNEL.value, channel_id)]
        if team_id := teams.get(producer_id) if producer_id is not None else None:
            owners.append((QuotaUsage.Scope.TEAM.value, team_id))
        for owner in owners:
            sums[owner] = sums.get(owner, Usage()) + usage
    return sums


def _keep(sums: dict[tuple[str, int], Usage], now: datetime) -> int:
    most = limits() | {(QuotaUsage.Scope.ALL.value, 0): Quota()}
    free = _disk_usage()
    with transaction.atomic():
        rows = {(row.scope, row.owner_id): row for row in QuotaUsage.objects.select_for_update()}
        # Deleted channels and teams are not reported any more.
        gone = [row.pk for at, row in rows.items() if at not in most and not _is_of_disk(row)]
        QuotaUsage.objects.filter(pk__in=gone).delete()
        changed = [
            row
            for owner, quota in most.items()
            if (row := _changed(rows.get(owner), owner, sums.get(owner, Usage()), quota, now))
        ]
        if row := _changed(rows.get(DISK), DISK, free, None, now):
            changed.append(row)
        fields = ("messages", "bytes", "counted_at", "level")
        QuotaUsage.objects.bulk_update([row for row in changed if row.pk], fields, batch_size=200)
        QuotaUsage.objects.bulk_create([row for row in changed if not row.pk])
    return 1


def _changed(
    stored: QuotaUsage | None,
    owner: tuple[str, int],
    used: Usage,
    quota: Quota | None,
    now: datetime,
) -> QuotaUsage | None:
    """Return the row with the new count, or None if nothing must be written; report a new level.

    Without a ``quota`` the row is this host's disk.
    """
    if stored is None and used == Usage() and owner[1]:
        return None
    row = stored or QuotaUsage(scope=owner[0], owner_id=owner[1])
    level = notifications.quota_level(
        row.level, _share_of_disk() if quota is None else quota.share(used)
    )
    is_all = not owner[1]  # this row's time tells readers when the count was made
    if not is_all and stored is not None and (row.usage, row.level) == (used, level):
        return None
    row.messages, row.bytes = used
    row.counted_at = now
    if level != row.level:
        row.level = level
        _notify(row, quota or Quota(), now)
    return row


def _disk_usage() -> Usage:
    """Return the free space of this host in full MiB, so that small changes cause no write."""
    free = min(room.free for room in disks.rooms())
    return Usage(0, free - free % MIB)


def _is_of_disk(row: QuotaUsage) -> bool:
    return row.scope == QuotaUsage.Scope.DISK.value


def _share_of_disk() -> float:
    """Return the used share as for a quota: 1.0 when publishing is rejected."""
    rooms = disks.rooms()
    if any(room.is_short for room in rooms):
        return 1.0
    if any(room.is_low for room in rooms):
        return notifications.QUOTA_NEAR
    return notifications.QUOTA_CALM if any(room.is_nearly_low for room in rooms) else 0.0


def _notify(row: QuotaUsage, quota: Quota, now: datetime) -> None:
    """Create the notification of a change, in the transaction that stores it."""
    if row.scope == QuotaUsage.Scope.DISK:
        name, reason = f"disk {HOST}", f"{row.bytes // MIB:,} MiB are free."
    else:
        name = name_of(row)
        wait = [
            f"{bar.used:,} of {bar.most:,} {bar.name}" for bar in quota.bars(row.usage) if bar.most
        ]
        reason = f"Waiting: {', '.join(wait) or 'no limit applies any more'}."
    is_team = row.scope == QuotaUsage.Scope.TEAM
    Notification.objects.create(
        kind=KIND[row.level],
        at=now,
        limit=name[:120],
        reason=reason,
        team_id=row.owner_id if is_team else None,
        mail_due_at=now if is_team else None,
    )
    logger.warning("%s: %s %s", row.level, name, reason)
