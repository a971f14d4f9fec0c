"""Exact numbers of deliveries by consumer and state, updated with the state."""

from collections.abc import Collection, Iterable, Mapping

from django.db import models
from django.db.models import Sum

from channels_app.database import raw
from channels_app.database.raw import dialect
from delivery.core.lifecycle import FINISHED, DeliveryState

SLOTS = 16
MADE = "made"
"""Deliveries ever created; equals the sum over all states unless the counts are wrong."""
OPEN = tuple(state.value for state in DeliveryState if state not in FINISHED)
COUNTED = (*(state.value for state in DeliveryState), MADE)
_NUMBERS = {
    DeliveryState.QUEUED.value: 0,
    DeliveryState.IN_FLIGHT.value: 1,
    DeliveryState.AWAITING_ACK.value: 2,
    DeliveryState.DELIVERED.value: 3,
    DeliveryState.DEAD.value: 4,
    DeliveryState.CANCELLED.value: 5,
    MADE: 6,
}
"""Part of the keys of stored rows: another number would add counts of one state to another's. A new
state gets the next number, up to 15."""

_ADDED = dialect.upsert("id", f"count = count + {dialect.new('count')}")


class Counter(models.Model):
    """One slot of a count. Reads sum the slots, so that writers do not wait for each other."""

    id = models.BigIntegerField(primary_key=True)
    """Consumer, state and slot packed into one key, so that an upsert touches one index."""
    consumer_id = models.BigIntegerField(db_index=True)
    state = models.CharField(max_length=12)
    slot = models.PositiveSmallIntegerField()
    count = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.consumer_id}/{self.state}/{self.slot}: {self.count}"

    @classmethod
    def add(cls, changes: Mapping[tuple[int, str], int], slot: int) -> None:
        """Add ``changes`` by (consumer id, state) inside the caller's transaction."""
        for sql, values in cls.adding(changes, slot):
            raw.execute(sql, values)

    @classmethod
    def adding(cls, changes: Mapping[tuple[int, str], int], slot: int) -> list[raw.Statement]:
        """Return what ``add`` executes: one statement, or none when nothing changes.

        Rows are written in key order, so that two writers cannot deadlock.
        """
        slot %= SLOTS
        rows = sorted(
            (_key(consumer_id, state, slot), consumer_id, state, slot, change)
            for (consumer_id, state), change in changes.items()
            if change
        )
        if not rows:
            return []
        # The broker's own constants, safe as literals.
        texts = [
            f"({key:d}, {owner:d}, '{state}', {slot:d}, {n:d})" for key, owner, state, _, n in rows
        ]
        sql = (
            f"INSERT INTO {cls._meta.db_table} (id, consumer_id, state, slot, count) "
            f"VALUES {', '.join(texts)} {_ADDED}"
        )
        return [(sql, [])]

    @classmethod
    def read(cls, consumer_ids: Iterable[int]) -> dict[int, dict[str, int]]:
        """Return counts by consumer and state; every state is present, also with zero."""
        wanted = list(consumer_ids)
        totals = {consumer_id: dict.fromkeys(COUNTED, 0) for consumer_id in wanted}
        rows = cls.objects.filter(consumer_id__in=wanted).values_list("consumer_id", "state")
        for consumer_id, state, total in rows.annotate(total=Sum("count")):
            totals[consumer_id][state] = int(total)
        return totals

    @classmethod
    def unfinished(cls, consumer_ids: Collection[int]) -> dict[int, int]:
        """Return each consumer's number of unfinished deliveries."""
        counters = cls.read(consumer_ids)
        return {key: sum(counts[state] for state in OPEN) for key, counts in counters.items()}

    @classmethod
    def totals(cls) -> dict[str, int]:
        """Return counts by state over all consumers."""
        rows = cls.objects.values_list("state").annotate(total=Sum("count"))
        return dict.fromkeys(COUNTED, 0) | {state: int(total) for state, total in rows}


def _key(consumer_id: int, state: str, slot: int) -> int:
    return (consumer_id << 8) | (_NUMBERS[state] << 4) | slot
