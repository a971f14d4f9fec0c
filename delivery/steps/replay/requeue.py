"""Queue finished deliveries again, with their failures counted from zero."""

from collections import Counter as Tally
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F

from delivery import lanes
from delivery.models import Counter, Delivery
from delivery.rules.lifecycle import DeliveryState, Reason

STEP_S = 0.1
"""Rows of one tenth of a second share a time, so that a fast rate needs few UPDATEs."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When the rows of a slice are due."""

    start: datetime
    rate_per_second: float | None
    """None: all at ``start``."""

    def at(self, place: int) -> datetime:
        """Return when the row at ``place`` is due, never later than the rate says."""
        if not self.rate_per_second:
            return self.start
        seconds = place / self.rate_per_second
        return self.start + timedelta(seconds=seconds // STEP_S * STEP_S)

    def after(self, count: int) -> datetime:
        """Return when the next slice begins."""
        if not self.rate_per_second:
            return self.start
        return self.start + timedelta(seconds=count / self.rate_per_second)

    def group(self, keys: Sequence[int], first_place: int) -> dict[datetime, list[int]]:
        """Group ``keys`` by when they are due."""
        groups: dict[datetime, list[int]] = {}
        for place, key in enumerate(keys, first_place):
            groups.setdefault(self.at(place), []).append(key)
        return groups


def requeue(
    delivery_ids: Collection[int],
    *,
    states: Collection[str],
    replay_id: int,
    pace: Pace,
    first_place: int,
    slot: int,
) -> int:
    """Queue those of ``delivery_ids`` that still are in ``states``; return how many.

    Runs inside the caller's transaction. Skips rows that this replay has queued before.
    """
    held = [
        row
        for row in Delivery.objects.filter(id__in=delivery_ids, state__in=states)
        .order_by("id")
        .select_for_update()
        .values_list("id", "consumer_id", "state", "replay_id")
        if row[3] != replay_id
    ]
    for due_at, keys in pace.group([row[0] for row in held], first_place).items():
        Delivery.objects.filter(id__in=keys, state__in=states).update(
            state=DeliveryState.QUEUED.value,
            reason=Reason.REPLAYED.value,
            due_at=due_at,
            finished_at=None,
            lease_owner=None,
            failure_count=0,
            interruption_count=0,
            replay_id=replay_id,
            version=F("version") + 1,
        )
    tally: Tally[tuple[int, str]] = Tally()
    for _, consumer_id, state, _ in held:
        tally[consumer_id, state] -= 1
        tally[consumer_id, DeliveryState.QUEUED.value] += 1
    Counter.add(tally, slot)
    lanes.enter_rows([row[0] for row in held])
    return len(held)
