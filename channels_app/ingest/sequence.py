"""Record a producer's sequence number in the transaction that stores the message (S2-65).

The sequence's row is the lock. Its holder knows which number is expected, and stores that message
or nothing. A sequence begins at 1, and is deleted after a week without messages.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from channels_app.core.sequence import RESTART, Decision, Turn, decide, sequence_id
from channels_app.models import PendingSequenceNumber, Sequence, new_id

FORGOTTEN_AFTER = timedelta(days=7)
BATCH = 500


class SequenceNumbers:
    """The sequences of some ordering keys of one producer, locked until the transaction ends."""

    def __init__(
        self, channel_id: int, producer_id: int | None, keys: Iterable[str], now: datetime
    ) -> None:
        """Lock the sequences in the order of their ids, and create those that are missing."""
        self._now = now
        ids = {sequence_id(channel_id, producer_id, key): key for key in keys}
        locked = Sequence.objects.select_for_update().filter(id__in=sorted(ids)).order_by("id")
        rows = {row.id: row for row in locked}
        # A concurrent insert of the same row collides, and the second transaction is run again.
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
        """How many numbers have been skipped so far."""

    def epoch(self, key: str) -> int:
        """How many times the key's sequence has been restarted."""
        return self._rows[key].epoch

    def expected(self, key: str) -> int:
        """The number that is expected next."""
        return self._rows[key].expected

    def last_message_id(self) -> int:
        """The latest message that these sequences have stored."""
        return max(row.last_message_id for row in self._rows.values())

    def ask(self, key: str, number: int, *, is_over: bool, gives_way: bool = True) -> Turn:
        """Decide about a number; the caller stores its message if it goes, and calls ``went``.

        ``is_over``: it has waited long enough to skip missing numbers. ``gives_way``: it then still
        lets lower numbers that wait go first.
        """
        row = self._rows[key]
        looks = is_over and gives_way and number > row.expected
        lower = self._lowest(row, number) if looks else None
        decision = decide(number, row.expected, is_over=is_over, lower=lower)
        if decision.skipped:
            self._skip(row, decision)
        if number == RESTART:
            row.epoch += 1
            PendingSequenceNumber.objects.filter(sequence_id=row.id).delete()
        row.expected = decision.expected
        return decision.turn

    def wait(self, key: str, number: int, until: datetime) -> None:
        """Record that a request with this number is waiting."""
        row = self._rows[key]
        pending = PendingSequenceNumber.objects.filter(sequence_id=row.id, number=number)
        if not pending.update(until=until):
            PendingSequenceNumber.objects.create(
                id=new_id(), sequence_id=row.id, number=number, until=until
            )

    def went(self, key: str, message_id: int) -> None:
        """Record that the message of the current number is stored."""
        self._rows[key].last_message_id = message_id

    def write(self) -> None:
        """Save the decisions, and delete waiting numbers that are below the expected one."""
        for _, row in sorted(self._rows.items()):
            row.touched_at = self._now
            row.save()
            PendingSequenceNumber.objects.filter(
                sequence_id=row.id, number__lt=row.expected
            ).delete()

    def _lowest(self, row: Sequence, number: int) -> int | None:
        waiting = PendingSequenceNumber.objects.filter(
            sequence_id=row.id, number__gte=row.expected, number__lt=number, until__gt=self._now
        )
        return waiting.order_by("number").values_list("number", flat=True).first()

    def _skip(self, row: Sequence, decision: Decision) -> None:
        self.skipped += decision.skipped
        row.skipped_from = row.expected
        row.skipped_to = row.expected + decision.skipped - 1
        row.skipped_count += decision.skipped
        row.skipped_at = self._now


def standing(
    channel_id: int, producer_id: int | None, keys: Iterable[str]
) -> dict[str, tuple[int, int]]:
    """Expected number and epoch of each key, -1 for an unknown one; locks nothing."""
    ids = {sequence_id(channel_id, producer_id, key): key for key in keys}
    sequences = Sequence.objects.filter(id__in=ids).values_list("id", "expected", "epoch")
    rows = {number: (expected, epoch) for number, expected, epoch in sequences}
    return {key: rows.get(number, (-1, -1)) for number, key in ids.items()}


def forget(now: datetime) -> Iterator[int]:
    """Delete sequences idle for ``FORGOTTEN_AFTER``; yields the size of each batch."""
    old = Sequence.objects.filter(touched_at__lt=now - FORGOTTEN_AFTER).order_by("touched_at")
    while gone := list(old.values_list("id", flat=True)[:BATCH]):
        # Check again: a sequence in use may have been touched meanwhile.
        Sequence.objects.filter(id__in=gone, touched_at__lt=now - FORGOTTEN_AFTER).delete()
        PendingSequenceNumber.objects.filter(sequence_id__in=gone, until__lt=now).delete()
        yield len(gone)
