"""Measure a healthy consumer beside a thousand slow ones."""

import json
from collections.abc import Sequence
from dataclasses import replace

from bench.adapters import BenchError
from bench.bodies import number_in
from bench.figures import Figure, percentile
from bench.rows.latency import SLOW
from bench.sink import Manner
from bench.stage import Row, Stage, Values

NEIGHBOURS = {"tiny": 50, "quick": 1_000, "full": 1_000}
"""Consumers that take a second per message, by mode."""
EACH = 30
"""Messages that wait for each of them, more than it takes during the measurement."""
TOGETHER, CONNECTIONS = 100, 4
HEALTHY = "healthy"
SECONDS = {"tiny": 2.0, "quick": 10.0, "full": 20.0}
SHARES = (("p50", 0.5), ("p99", 0.99))


def measure(stage: Stage) -> Values:
    """Measure the healthy consumer alone, then while every slow one has a backlog."""
    count = NEIGHBOURS[stage.sizes.name]
    each = [{"event_types": [HEALTHY]}, *({"event_types": [_kind(n)]} for n in range(count))]
    slow_ones: list[Manner] = ["slow"] * count
    healthy, *_ = stage.consumers("take", *slow_ones, each=each)
    batch = stage.broker.batch()
    if batch is None:
        raise BenchError("It has no batch endpoint.")
    alone = _latencies(stage, healthy)
    slow = replace(batch, pack=PACKS[count])
    with stage.follow(
        count * EACH, [], route=slow, connections=CONNECTIONS, together=TOGETHER
    ) as crowd:
        crowd.finish(stage.tell)
    beside = _latencies(stage, healthy)
    stage.consumers("take")  # waiting deliveries are cancelled with their consumers
    values: Values = {}
    for name, share in SHARES:
        values[f"neighbours.alone_{name}"] = percentile(alone, share)
        values[f"neighbours.beside_{name}"] = percentile(beside, share)
        values[f"neighbours.{name}"] = percentile(beside, share) / percentile(alone, share)
    return values


def _latencies(stage: Stage, healthy: int) -> list[float]:
    single = stage.broker.single()
    route = replace(single, headers={**single.headers, "Hookstation-Event-Type": HEALTHY})
    count = int(SLOW * SECONDS[stage.sizes.name])
    for messages in (SLOW, count):
        with stage.follow(messages, [healthy], route=route, rate=SLOW) as following:
            flow = following.finish(stage.tell)
    return flow.latencies_ms(healthy)


def _pack(bodies: Sequence[bytes], among: int) -> bytes:
    kinds = [_kind((number_in(body) or 0) % among) for body in bodies]
    items = [
        {"body": it.decode(), "event_type": kind} for it, kind in zip(bodies, kinds, strict=True)
    ]
    return json.dumps(items).encode()


def pack_few(bodies: Sequence[bytes]) -> bytes:
    """Return a batch of messages for a few neighbours in turn."""
    return _pack(bodies, NEIGHBOURS["tiny"])


def pack_many(bodies: Sequence[bytes]) -> bytes:
    """Return a batch of messages for each neighbour in turn."""
    return _pack(bodies, NEIGHBOURS["full"])


PACKS = {NEIGHBOURS["tiny"]: pack_few, NEIGHBOURS["full"]: pack_many}


def _kind(place: int) -> str:
    return f"slow.{place}"


def _figures() -> tuple[Figure, ...]:
    figures = []
    for name, _ in SHARES:
        must = 3.0 if name == "p99" else None
        title = f"healthy consumer's {name} beside 1,000 that take a second, {SLOW} messages/s"
        figures += [
            Figure(f"neighbours.{name}", title, "x of alone", must=must, digits=2),
            Figure(f"neighbours.beside_{name}", "- the same", "ms", digits=2),
            Figure(f"neighbours.alone_{name}", "- alone", "ms", digits=2),
        ]
    return tuple(figures)


ROWS = (Row("neighbours", _figures(), measure, ours_alone=True, in_quick=False),)
