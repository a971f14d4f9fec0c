"""Record a producer's number in the transaction that stores the message (S2-65).

The sequence's row is the lock: who holds it knows which number is expected, and stores that one or
nothing. A sequence begins at 1, and is forgotten when nothing has come for a week.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from channels_app.models import EarlyNumber, Sequence, new_id
from channels_app.rules.sequence import RESTART, Decision, Turn, decide, sequence_id

FORGOTTEN_AFTER = timedelta(days=7)
BATCH = 500


class SequenceNumbers:
    """The sequences of some keys of one producer, locked until the transaction ends."""

    def __init__(
        self, channel_id: int, producer_id: int | None, keys: Iterable[str], now: datetime
    ) -> None:
        """Lock them, in one order whoever comes; those that are missing are made."""
        self._now = now
        ids = {sequence_id(channel_id, producer_id, key): key for key in keys}
        found = Sequence.objects.select_for_update().filter(id__in=sorted(ids)).order_by("id")
        rows = {row.id: row for row in found}
        # Two that make the same one collide, and the second one runs once more.
        for number in sorted(ids.keys() - rows.keys()):
            rows[number] = Sequence.objects.create(
                id=number,
                channel_id=channel_id,
                producer_id=producer_id,
                ordering_key=ids[number],
                touched_at=now,
            )
        self._rows = {ids[number]: row for number, row in rows.items()}
        self.skipped = 0
        """Numbers given up so far."""

    def epoch(self, key: str) -> int:
        """How often the key's sequence has begun anew."""
        return self._rows[key].epoch

    def expected(self, key: str) -> int:
        """The number whose turn it is."""
        return self._rows[key].expected

    def last_message_id(self) -> int:
        """The latest of what these sequences have stored."""
        return max(row.last_message_id for row in self._rows.values())

    def ask(self, key: str, number: int, *, is_over: bool, gives_way: bool = True) -> Turn:
        """What becomes of a number; the caller stores what goes, and says so (``went``).

        ``is_over`` and ``gives_way``: whether it goes on without those that are missing, and even
        before earlier ones that wait.
        """
        row = self._rows[key]
        looks = is_over and gives_way and number > row.expected
        lower = self._lowest(row, number) if looks else None
        found = decide(number, row.expected, is_over=is_over, lower=lower)
        if found.skipped:
            self._skip(row, found)
        if number == RESTART:
            row.epoch += 1
            EarlyNumber.objects.filter(sequence_id=row.id).delete()
        row.expected = found.expected
        return found.turn

    def wait(self, key: str, number: int, until: datetime) -> None:
        """Say that a request waits with this number."""
        row = self._rows[key]
        mine = EarlyNumber.objects.filter(sequence_id=row.id, number=number)
        if not mine.update(until=until):
            EarlyNumber.objects.create(id=new_id(), sequence_id=row.id, number=number, until=until)

    def went(self, key: str, message_id: int) -> None:
        """Its number's message is stored."""
        self._rows[key].last_message_id = message_id

    def write(self) -> None:
        """Keep what has been decided; nobody waits any more with what has passed."""
        for _, row in sorted(self._rows.items()):
            row.touched_at = self._now
            row.save()
            EarlyNumber.objects.filter(sequence_id=row.id, number__lt=row.expected).delete()

    def _lowest(self, row: Sequence, number: int) -> int | None:
        waiting = EarlyNumber.objects.filter(
            sequence_id=row.id, number__gte=row.expected, number__lt=number, until__gt=self._now
        )
        return waiting.order_by("number").values_list("number", flat=True).first()

    def _skip(self, row: Sequence, found: Decision) -> None:
        self.skipped += found.skipped
        row.skipped_from = row.expected
        row.skipped_to = row.expected + found.skipped - 1
        row.skipped_count += found.skipped
        row.skipped_at = self._now


def standing(
    channel_id: int, producer_id: int | None, keys: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """What is expected of each key and its epoch, -1 where it is not known; locks nothing."""
    ids = {sequence_id(channel_id, producer_id, key): key for key in keys}
    found = Sequence.objects.filter(id__in=ids).values_list("id", "expected", "epoch")
    rows = {number: (expected, epoch) for number, expected, epoch in found}
    return {key: rows.get(number, (-1, -1)) for number, key in ids.items()}


def forget(now: datetime) -> Iterator[int]:
    """Delete sequences of which nothing has come for long; yields the number of each step."""
    old = Sequence.objects.filter(touched_at__lt=now - FORGOTTEN_AFTER).order_by("touched_at")
    while gone := list(old.values_list("id", flat=True)[:BATCH]):
        # Whoever comes at this moment has touched it.
        Sequence.objects.filter(id__in=gone, touched_at__lt=now - FORGOTTEN_AFTER).delete()
        EarlyNumber.objects.filter(sequence_id__in=gone, until__lt=now).delete()
        yield len(gone)
