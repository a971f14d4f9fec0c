"""Define where deliveries of an ordering key wait, and estimate what ordering costs."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b

from channels_app.core.ids import TIME_SHIFT

BEHIND = datetime(9000, 1, 1, tzinfo=UTC)
"""The ``due_at`` of a delivery that waits for an earlier one of its key. It is later than any time
that may be requested, so a claim never reads these rows, however many there are."""
BETWEEN_MS = 10.0
"""Milliseconds from the end of one message of a key to sending the next; includes storing it."""


def key_number(consumer_id: int, ordering_key: str) -> int:
    """Return the id of a consumer's key: a positive 63-bit number, equal in every process.

    Two keys with the same number would only wait for each other. Among a million keys that happens
    in one of ten million installations.
    """
    digest = blake2b(f"{consumer_id}:{ordering_key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def acceptance(message_id: int, accepted_at: str) -> tuple[int, str, int]:
    """Return the sort key for the order in which messages were accepted.

    Message ids contain a clock with milliseconds that all processes share; within one millisecond
    the time of acceptance decides.
    """
    return message_id >> TIME_SHIFT, accepted_at, message_id


@dataclass(frozen=True, slots=True)
class OrderingLoad:
    """The load to estimate."""

    keys: int
    """Keys that have messages at the same time."""
    answer_ms: float
    """Response time of the consumer, without its acknowledgement."""
    max_in_flight: int
    per_second: float = 0.0
    """Incoming messages per second of all keys together; 0: unknown."""
    most_per_second: float = math.inf
    """Throughput of the broker without ordering on this machine (``make bench``)."""
    ack_ms: float = 0.0
    """Time from the response to the acknowledgement; 0: the response is the acknowledgement."""
    lost: float = 0.0
    """Share of acknowledgements that never arrive, 0 to 1."""
    timeout_ms: float = 0.0
    """Wait for an acknowledgement that does not arrive."""
    between_ms: float = BETWEEN_MS


@dataclass(frozen=True, slots=True)
class Cost:
    """The estimate for one kind of ordering."""

    name: str
    hold_ms: float
    """How long a message keeps the others of its key waiting; 0: not at all."""
    per_key: float
    """Most messages per second of one key."""
    per_second: float
    """Most messages per second of all keys together."""
    busy: float
    """Share of time for which a key is busy; from 1 on its backlog only grows."""
    wait_ms: float
    """Average wait of a message for others of its key; inf if the backlog only grows."""


def costs(load: OrderingLoad) -> list[Cost]:
    """Estimate no order, ordered keys, acknowledged keys if used, and one key for everything."""
    whole = min(load.max_in_flight * 1000 / load.answer_ms, load.most_per_second)
    held = load.answer_ms + load.between_ms
    estimates = [
        Cost("no order", 0.0, whole, whole, 0.0, 0.0),
        _kept("ordered keys", load, load.keys, held, whole),
    ]
    if load.ack_ms or load.lost:
        waited = (1 - load.lost) * load.ack_ms + load.lost * load.timeout_ms
        estimates.append(_kept("acknowledged keys", load, load.keys, held + waited, whole))
    return [*estimates, _kept("one key (fifo)", load, 1, held, whole)]


def in_flight(load: OrderingLoad) -> int:
    """Return the number of open requests by Little's law: rate times response time."""
    return math.ceil(load.per_second * load.answer_ms / 1000)


def _kept(name: str, load: OrderingLoad, keys: int, hold_ms: float, whole: float) -> Cost:
    per_key = 1000 / hold_ms
    busy = load.per_second / keys / per_key
    return Cost(name, hold_ms, per_key, min(keys * per_key, whole), busy, _wait_ms(busy, hold_ms))


def _wait_ms(busy: float, hold_ms: float) -> float:
    """Pollaczek-Khinchine formula for random arrivals and a constant service time."""
    return busy * hold_ms / (2 * (1 - busy)) if busy < 1 else math.inf
