"""Body buffer: bodies of a pump's open requests, limited by bytes as well as by number."""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from delivery import metrics
from delivery.conf import conf
from delivery.rules.claimed import ClaimedDelivery
from delivery.runtime.consumer_queue import ConsumerQueue
from delivery.steps import payloads
from delivery.steps.payloads import Payload, PayloadCache

SETTLING = 8
"""How many bodies it takes until the usual size has followed them."""

Pairs: TypeAlias = list[tuple[ClaimedDelivery, ConsumerQueue]]
Loaded: TypeAlias = list[tuple[ClaimedDelivery, ConsumerQueue, Payload | None]]
"""With what each delivery carries; None where the message is missing."""


class BodyBuffer:
    """What is on its way, and what of the claimed may join it."""

    def __init__(self) -> None:
        self._shelf = PayloadCache()
        self._bytes = 0
        self.next_at: datetime | None = None
        """When the next one of the claimed that is not due yet may go."""

    def prepare(self, claimed: Sequence[ClaimedDelivery], now: datetime) -> None:
        """Have the content of what is not due yet at hand when it is."""
        self._shelf.prepare(row.message_id for row in claimed if row.due_at > now)

    def stock(self, contents: Sequence[payloads.Row], claimed: Iterable[ClaimedDelivery]) -> None:
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
        early = [(row, queue) for row, queue in claimed if row.due_at > now]
        self.next_at = min((row.due_at for row, _ in early), default=None)
        tried, waiting = _apart([it for it in claimed if it[0].due_at <= now], now)
        waiting += early
        contents = self._shelf.load(row.message_id for row, _ in tried)
        going: Loaded = []
        coming: dict[int, int] = {}
        total = self._bytes
        for row, queue in tried:
            payload = contents.get(row.message_id)
            size = payload.size if payload else 0
            mine = queue.body_bytes + coming.get(queue.view.id, 0)
            fits = mine + size <= queue.most_bytes and total + size <= conf().pump_body_bytes
            if mine and not fits and not is_late(row, queue, now):
                waiting.append((row, queue))
                continue
            coming[queue.view.id] = mine + size - queue.body_bytes
            total += size
            going.append((row, queue, payload))
        # One by one: a result of many is in memory twice, as it was read and as it was opened.
        for message_id in {
            row.message_id for row, _, payload in going if payload and payload.is_left
        }:
            contents |= payloads.load([message_id])
        metrics.LATENESS.observe_all([(now - row.due_at).total_seconds() for row, *_ in going])
        return [(row, queue, contents.get(row.message_id)) for row, queue, _ in going], waiting

    def put(self, queue: ConsumerQueue, size: int) -> None:
        """A body goes on its way."""
        self._bytes += size
        queue.body_bytes += size
        queue.usual_bytes += (size - queue.usual_bytes) / SETTLING

    def take(self, queue: ConsumerQueue, size: int) -> None:
        """It has come to its end."""
        self._bytes -= size
        queue.body_bytes -= size


def is_late(row: ClaimedDelivery, queue: ConsumerQueue, now: datetime) -> bool:
    """Whether an attempt that began now might outlive its lease."""
    return now + timedelta(milliseconds=queue.view.timeout_ms) > row.lease_until


def _apart(claimed: Pairs, now: datetime) -> tuple[Pairs, Pairs]:
    """Those worth reading, and those whose consumer has its share on the way already."""
    tried: Pairs = []
    full: Pairs = []
    for row, queue in claimed:
        waits = queue.body_bytes >= queue.most_bytes and not is_late(row, queue, now)
        (full if waits else tried).append((row, queue))
    return tried, full
