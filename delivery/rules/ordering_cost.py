"""Ordering cost: what order takes in throughput and in waiting, by formulas (docs/ordering.md)."""

import math
from dataclasses import dataclass

BETWEEN_MS = 10.0
"""From the end of one message of a key to the sending of the next: it is written down before."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be delivered, and to whom."""

    keys: int
    """That have something at the same time."""
    answer_ms: float
    """Of the consumer, its acknowledgement not included."""
    max_in_flight: int
    per_second: float = 0.0
    """Messages that come, of all keys together; 0: not known."""
    most_per_second: float = math.inf
    """What the broker delivers without order on this machine (``make bench``)."""
    ack_ms: float = 0.0
    """From the answer to the acknowledgement; 0: the answer is it."""
    lost: float = 0.0
    """Share of the acknowledgements that never come, 0 to 1."""
    timeout_ms: float = 0.0
    """How long one of those is waited for."""
    between_ms: float = BETWEEN_MS


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way of ordering comes to."""

    name: str
    hold_ms: float
    """For how long a message keeps the others of its key waiting; 0: it does not."""
    per_key: float
    """Messages a second of one key at most."""
    per_second: float
    """Of all together at most."""
    busy: float
    """Share of its time for which a key is held; 1 and above: it never catches up."""
    wait_ms: float
    """What a message waits for others of its key, in the middle; inf where it never catches up."""


def costs(load: Load) -> list[Cost]:
    """No order, ordered keys, acknowledged ones where they are, and one key for everything."""
    whole = min(load.max_in_flight * 1000 / load.answer_ms, load.most_per_second)
    held = load.answer_ms + load.between_ms
    found = [
        Cost("no order", 0.0, whole, whole, 0.0, 0.0),
        _kept("ordered keys", load, load.keys, held, whole),
    ]
    if load.ack_ms or load.lost:
        waited = (1 - load.lost) * load.ack_ms + load.lost * load.timeout_ms
        found.append(_kept("acknowledged keys", load, load.keys, held + waited, whole))
    return [*found, _kept("one key (fifo)", load, 1, held, whole)]


def in_flight(load: Load) -> int:
    """Requests that are open at once for what comes, after Little: rate times answer time."""
    return math.ceil(load.per_second * load.answer_ms / 1000)


def _kept(name: str, load: Load, keys: int, hold_ms: float, whole: float) -> Cost:
    per_key = 1000 / hold_ms
    busy = load.per_second / keys / per_key
    return Cost(name, hold_ms, per_key, min(keys * per_key, whole), busy, _wait_ms(busy, hold_ms))


def _wait_ms(busy: float, hold_ms: float) -> float:
    """Pollaczek and Khinchine for messages that come by chance and hold their key equally long."""
    return busy * hold_ms / (2 * (1 - busy)) if busy < 1 else math.inf
