"""Limit the bodies of a pump's open requests by bytes as well as by number."""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from delivery import metrics
from delivery.conf import conf
from delivery.core.lifecycle import ClaimedDelivery
from delivery.pump.consumer_queue import ConsumerQueue
from delivery.transport import payloads
from delivery.transport.payloads import Payload, PayloadCache

SETTLING = 8
"""Number of bodies over which the average size adapts."""

Pairs: TypeAlias = list[tuple[ClaimedDelivery, ConsumerQueue]]
Loaded: TypeAlias = list[tuple[ClaimedDelivery, ConsumerQueue, Payload | None]]
"""Each delivery with its payload; None if the message is missing."""


class BodyBuffer:
    """Counts the bytes in flight, and chooses which claimed deliveries may be sent."""

    def __init__(self) -> None:
        self._cache = PayloadCache()
        self._bytes = 0
        self.next_at: datetime | None = None
        """When the next claimed delivery that is not due yet may be sent."""

    def prepare(self, claimed: Sequence[ClaimedDelivery], now: datetime) -> None:
        """Read payloads of deliveries that are not due yet, so that they can be sent in time."""
        self._cache.prepare(row.message_id for row in claimed if row.due_at > now)

    def add(self, payload_rows: Sequence[payloads.Row], claimed: Iterable[ClaimedDelivery]) -> None:
        """Keep payloads that were read when these deliveries were claimed."""
        if payload_rows:
            self._cache.add(payload_rows, Tally(row.message_id for row in claimed))

    def seconds(self, now: datetime) -> float:
        """Return the seconds until the next delivery that was not due at the last `load` is due."""
        return float("inf") if self.next_at is None else (self.next_at - now).total_seconds()

    def load(self, claimed: Pairs, now: datetime) -> tuple[Loaded, Pairs]:
        """Return deliveries to send now, with their payloads, and those that must wait for room.

        No delivery is sent before it is due. A consumer with nothing in flight always gets one, and
        a delivery whose lease ends too soon does not wait.
        """
        early = [(row, queue) for row, queue in claimed if row.due_at > now]
        self.next_at = min((row.due_at for row, _ in early), default=None)
        tried, waiting = _apart([pair for pair in claimed if pair[0].due_at <= now], now)
        waiting += early
        payload_rows = self._cache.load(row.message_id for row, _ in tried)
        going: Loaded = []
        coming: dict[int, int] = {}
        total = self._bytes
        for row, queue in tried:
            payload = payload_rows.get(row.message_id)
            size = payload.size if payload else 0
            queue_bytes = queue.body_bytes + coming.get(queue.consumer.id, 0)
            fits = queue_bytes + size <= queue.most_bytes and total + size <= conf().pump_body_bytes
            if queue_bytes and not fits and not is_late(row, queue, now):
                waiting.append((row, queue))
                continue
            coming[queue.consumer.id] = queue_bytes + size - queue.body_bytes
            total += size
            going.append((row, queue, payload))
        # One at a time: each result is in memory twice, as read and as decrypted.
        for message_id in {
            row.message_id for row, _, payload in going if payload and payload.is_left
        }:
            payload_rows |= payloads.load([message_id])
        metrics.LATENESS.observe_all([(now - row.due_at).total_seconds() for row, *_ in going])
        return [(row, queue, payload_rows.get(row.message_id)) for row, queue, _ in going], waiting

    def put(self, queue: ConsumerQueue, size: int) -> None:
        """Add a body that is sent now."""
        self._bytes += size
        queue.body_bytes += size
        queue.usual_bytes += (size - queue.usual_bytes) / SETTLING

    def take(self, queue: ConsumerQueue, size: int) -> None:
        """Subtract a body whose request has ended."""
        self._bytes -= size
        queue.body_bytes -= size


def is_late(row: ClaimedDelivery, queue: ConsumerQueue, now: datetime) -> bool:
    """Whether an attempt that begins now might outlive its lease."""
    return now + timedelta(milliseconds=queue.consumer.timeout_ms) > row.lease_until


def _apart(claimed: Pairs, now: datetime) -> tuple[Pairs, Pairs]:
    """Separate deliveries worth reading from those of consumers that have used up their share."""
    tried: Pairs = []
    full: Pairs = []
    for row, queue in claimed:
        waits = queue.body_bytes >= queue.most_bytes and not is_late(row, queue, now)
        (full if waits else tried).append((row, queue))
    return tried, full
