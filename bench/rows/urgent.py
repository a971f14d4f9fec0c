"""Measure messages of high priority beside a bulk load of low priority."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace

from bench.adapters import BenchError, Route
from bench.bodies import number_in
from bench.figures import Figure, percentile
from bench.flow import POLL_S
from bench.sink import Manner
from bench.stage import Row, Stage, Values

CONSUMERS = 20
BULK = {"tiny": 2_000, "quick": 20_000, "full": 20_000}
"""Messages of low priority, for all consumers together, by mode."""
TOGETHER, CONNECTIONS = 100, 4
RATE = 10
"""Messages of high priority per second."""
CALM_S = {"tiny": 5.0, "quick": 10.0, "full": 30.0}
"""Seconds for which the idle broker is measured, by mode."""
URGENT = "urgent"
SHARES = (("p50", 0.5), ("p95", 0.95))
PATIENCE_S = 300.0


def measure(stage: Stage) -> Values:
    """Measure high priority on an idle broker, and beside a bulk load.

    The second measurement lasts from the first bulk message to the last one's arrival. The
    high-priority messages go to one of the consumers of the bulk load.
    """
    each = [{"event_types": [_kind(place)]} for place in range(CONSUMERS)]
    each[0]["event_types"].append(URGENT)
    manners: list[Manner] = ["take"] * CONSUMERS
    numbers = stage.consumers(*manners, each=each)
    receiver = numbers[0]
    single, batch = stage.broker.single(), stage.broker.batch()
    if batch is None:
        raise BenchError("It has no batch endpoint.")
    urgent = replace(single, headers={**single.headers, **HEADERS})
    calm = stage.follow(int(RATE * CALM_S[stage.sizes.name]), [receiver], route=urgent, rate=RATE)
    with calm:
        idle = calm.finish(stage.tell).latencies_ms(receiver)
    busy, seconds = _beside_bulk(stage, numbers, replace(batch, pack=pack_low), urgent)
    values = {"urgent.rate": BULK[stage.sizes.name] / seconds, "urgent.count": float(len(busy))}
    for name, share in SHARES:
        values[f"urgent.idle_{name}"] = percentile(idle, share)
        values[f"urgent.busy_{name}"] = percentile(busy, share)
        values[f"urgent.{name}"] = percentile(busy, share) / percentile(idle, share)
    return values


HEADERS = {"Hookstation-Priority": "9", "Hookstation-Event-Type": URGENT}


def pack_low(bodies: Sequence[bytes]) -> bytes:
    """Return a batch of messages of the lowest priority, one consumer after the other."""
    kinds = [_kind((number_in(body) or 0) % CONSUMERS) for body in bodies]
    items = [
        {"body": body.decode(), "event_type": kind, "priority": 0}
        for body, kind in zip(bodies, kinds, strict=True)
    ]
    return json.dumps(items).encode()


def _beside_bulk(
    stage: Stage, numbers: Sequence[int], low: Route, urgent: Route
) -> tuple[list[float], float]:
    """Return latencies during the bulk load, and how many seconds the load took."""
    count, most = BULK[stage.sizes.name], int(RATE * PATIENCE_S)
    with (
        stage.follow(count, numbers, route=low, connections=CONNECTIONS, together=TOGETHER) as bulk,
        stage.follow(most, numbers[:1], route=urgent, rate=RATE) as high,
    ):
        end = time.monotonic() + PATIENCE_S
        while bulk.flow.deliveries < count:
            if time.monotonic() > end:
                raise BenchError("The bulk load did not arrive.")
            stage.tell(bulk.flow.deliveries, count)
            time.sleep(POLL_S)
            bulk.look()
            high.look()
        return high.flow.latencies_ms(numbers[0]), bulk.flow.seconds


def _kind(place: int) -> str:
    return f"bulk.{place}"


def _figures() -> tuple[Figure, ...]:
    beside = f"beside {CONSUMERS} consumers' bulk load of low priority"
    figures = []
    for name, _ in SHARES:
        must = 3.0 if name == "p95" else None
        title = f"high priority, {RATE} messages/s, {name} {beside}"
        figures += [
            Figure(f"urgent.{name}", title, "x of idle", must=must, digits=2),
            Figure(f"urgent.busy_{name}", "- the same", "ms", digits=2),
            Figure(f"urgent.idle_{name}", "- on an idle broker", "ms", digits=2),
        ]
    return (
        *figures,
        Figure("urgent.rate", "- deliveries/s of the bulk load meanwhile", "/s", digits=0),
        Figure("urgent.count", "- messages of high priority meanwhile", "", digits=0),
    )


ROWS = (Row("urgent", _figures(), measure, ours_alone=True, in_quick=False),)
