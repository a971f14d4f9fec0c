"""Find due schedules, and store their results and next occurrences (S4-06).

The schedule's row is the lock: its holder publishes, and moves ``next_at`` in the transaction that
stores the message. Concurrent processes skip a locked row; later ones see another ``next_at`` and
version.
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
    """A locked schedule was changed by another transaction: discard everything of this round."""


def next_at() -> datetime | None:
    """Return when the next schedule is due; None if there is none."""
    found: datetime | None = Schedule.objects.aggregate(at=Min("next_at"))["at"]
    return found


def take(now: datetime, most: int) -> list[Schedule]:
    """Lock due schedules until the transaction ends; return them, longest overdue first.

    Schedules that another process has locked are skipped.
    """
    rows = raw.read(_DUE + raw.skip_locked(), [raw.text(now), most])
    keys = [key for (key,) in rows]
    found = Schedule.objects.select_related("channel", "producer", "body").in_bulk(keys)
    return [found[key] for key in keys if key in found]


def is_undelivered(schedule: Schedule) -> bool:
    """Whether its last message still waits for the fan-out or for one of its consumers."""
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
    """Store a round's result in the row, if its settings still have the version that was used.

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
    """Store the result of a manual run, which does not affect the next occurrence or the limit."""
    Schedule.objects.filter(id=schedule.id).update(
        recent=occurrence_log.kept(schedule.recent, line), last_message_id=message_id
    )
