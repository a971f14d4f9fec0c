"""Find due schedules, and write their next occurrence and result (S4-06).

The row is the lock: whoever holds it fires, and moves ``next_at`` in the transaction that stores
the message. A rival passes over it; who comes later finds another ``next_at`` and version.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import F, Min

from channels_app.models import Message, Schedule, raw
from channels_app.rules import occurrence_log
from delivery.models import Delivery
from delivery.rules.lifecycle import DeliveryState

_WAITING = [
    DeliveryState.QUEUED.value,
    DeliveryState.IN_FLIGHT.value,
    DeliveryState.AWAITING_ACK.value,
]
_DUE = (
    f"SELECT id FROM {Schedule._meta.db_table}"  # noqa: S608 (a name of ours)
    " WHERE next_at <= %s ORDER BY next_at LIMIT %s"
)


class Lost(Exception):
    """Somebody else moved a schedule that was locked: nothing of this round may be kept."""


def next_at() -> datetime | None:
    """When the next schedule is due; None while none is waiting."""
    found: datetime | None = Schedule.objects.aggregate(at=Min("next_at"))["at"]
    return found


def take(now: datetime, most: int) -> list[Schedule]:
    """Schedules that are due, longest first, locked until the transaction ends.

    Those that somebody else holds are his.
    """
    rows = raw.read(_DUE + raw.skip_locked(), [raw.text(now), most])
    keys = [key for (key,) in rows]
    found = Schedule.objects.select_related("channel", "producer", "body").in_bulk(keys)
    return [found[key] for key in keys if key in found]


def is_undelivered(schedule: Schedule) -> bool:
    """Whether its last message still waits: for its fan-out, or for one of its consumers."""
    message_id = schedule.last_message_id
    if message_id is None:
        return False
    if Message.objects.filter(id=message_id, state=Message.State.ACCEPTED).exists():
        return True
    return Delivery.objects.filter(message_id=message_id, state__in=_WAITING).exists()


def move(
    schedule: Schedule,
    lines: Sequence[dict[str, Any]],
    *,
    next_at: datetime | None,
    message_id: int | None,
    skipped: int,
) -> None:
    """Write a round's result into the row, whose version is that of the settings that it followed.

    Raises Lost.
    """
    fired = 0 if message_id is None else 1
    if schedule.limit is not None and schedule.fired_count + fired >= schedule.limit:
        next_at = None
    same = Schedule.objects.filter(
        id=schedule.id, version=schedule.version, next_at=schedule.next_at
    )
    moved = same.update(
        next_at=next_at,
        state=Schedule.State.ACTIVE if next_at else Schedule.State.ENDED,
        recent=occurrence_log.kept(schedule.recent, *lines),
        fired_count=F("fired_count") + fired,
        skipped_count=F("skipped_count") + skipped,
        last_message_id=schedule.last_message_id if message_id is None else message_id,
    )
    if not moved:
        raise Lost(f"schedule {schedule.id}")


def note_run(schedule: Schedule, line: dict[str, Any], message_id: int) -> None:
    """The same for one by hand, which leaves the timetable and the limit alone."""
    Schedule.objects.filter(id=schedule.id).update(
        recent=occurrence_log.kept(schedule.recent, line), last_message_id=message_id
    )
