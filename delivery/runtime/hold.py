"""Hold: the bodies that a pump has on their way, bounded by their bytes and not only by number."""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from delivery import metrics
from delivery.conf import conf
from delivery.rules.claimed import Claimed
from delivery.runtime.line import Line
from delivery.steps import parcels
from delivery.steps.parcels import Parcel, Shelf

SETTLING = 8
"""How many bodies it takes until the usual size has followed them."""

Pairs: TypeAlias = list[tuple[Claimed, Line]]
Loaded: TypeAlias = list[tuple[Claimed, Line, Parcel | None]]
"""With what each delivery carries; None where the message is missing."""


class Hold:
    """What is on its way, and what of the claimed may join it."""

    def __init__(self) -> None:
        self._shelf = Shelf()
        self._bytes = 0
        self.next_at: datetime | None = None
        """When the next one of the claimed that is not due yet may go."""

    def prepare(self, claimed: Sequence[Claimed], now: datetime) -> None:
        """Have the content of what is not due yet at hand when it is."""
        self._shelf.prepare(row.message_id for row in claimed if row.due_at > now)

    def stock(self, contents: Sequence[parcels.Row], claimed: Iterable[Claimed]) -> None:
        """Have at hand what was read while these were claimed."""
        if contents:
            self._shelf.stock(contents, Tally(row.message_id for row in claimed))

    def seconds(self, now: datetime) -> float:
        """How long until one may go that was not due at the last `load`."""
        return float("inf") if self.next_at is None else (self.next_at - now).total_seconds()

    def load(self, claimed: Pairs, now: datetime) -> tuple[Loaded, Pairs]:
        """What may go now, with its content, and what has to wait until something else has ended.

        Nothing goes before its time. A consumer that has nothing on its way always gets one, and
        what is too late is not kept waiting.
        """
        early = [(row, line) for row, line in claimed if row.due_at > now]
        self.next_at = min((row.due_at for row, _ in early), default=None)
        tried, waiting = _apart([it for it in claimed if it[0].due_at <= now], now)
        waiting += early
        contents = self._shelf.load(row.message_id for row, _ in tried)
        going: Loaded = []
        coming: dict[int, int] = {}
        total = self._bytes
        for row, line in tried:
            parcel = contents.get(row.message_id)
            size = parcel.size if parcel else 0
            mine = line.body_bytes + coming.get(line.view.id, 0)
            fits = mine + size <= line.most_bytes and total + size <= conf().pump_body_bytes
            if mine and not fits and not is_late(row, line, now):
                waiting.append((row, line))
                continue
            coming[line.view.id] = mine + size - line.body_bytes
            total += size
            going.append((row, line, parcel))
        # One by one: a result of many is in memory twice, as it was read and as it was opened.
        for message_id in {row.message_id for row, _, parcel in going if parcel and parcel.is_left}:
            contents |= parcels.load([message_id])
        metrics.LATENESS.observe_all([(now - row.due_at).total_seconds() for row, *_ in going])
        return [(row, line, contents.get(row.message_id)) for row, line, _ in going], waiting

    def put(self, line: Line, size: int) -> None:
        """A body goes on its way."""
        self._bytes += size
        line.body_bytes += size
        line.usual_bytes += (size - line.usual_bytes) / SETTLING

    def take(self, line: Line, size: int) -> None:
        """It has come to its end."""
        self._bytes -= size
        line.body_bytes -= size


def is_late(row: Claimed, line: Line, now: datetime) -> bool:
    """Whether an attempt that began now might outlive its lease."""
    return now + timedelta(milliseconds=line.view.timeout_ms) > row.lease_until


def _apart(claimed: Pairs, now: datetime) -> tuple[Pairs, Pairs]:
    """Those worth reading, and those whose consumer has its share on the way already."""
    tried: Pairs = []
    full: Pairs = []
    for row, line in claimed:
        waits = line.body_bytes >= line.most_bytes and not is_late(row, line, now)
        (full if waits else tried).append((row, line))
    return tried, full
