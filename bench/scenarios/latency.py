"""Measure the time from a producer's POST to the POST that reaches the consumer.

At a steady rate; from the due time of scheduled messages; beside hanging, failing and slow
consumers; and of high priority beside a bulk load.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bench.adapters import BenchError
from bench.stage import Figure, Scenario, Stage, Values, percentile

SLOW, FAST = 50, 450
"""Messages per second."""
P50_P99 = {"p50": 0.5, "p99": 0.99}
P50_P95 = {"p50": 0.5, "p95": 0.95}

DUE_RATE = 2000
"""Scheduled messages that become due per second."""
LEAD_S, PUBLISH_RATE = 3.0, 2500
"""Time before the first message is due: a reserve, and the time to publish at this many messages
per second."""

TIMEOUT_MS = 2_000
"""Short enough that hanging requests time out, are retried and open the circuit."""

NEIGHBOURS = {"tiny": 50, "quick": 1_000, "full": 1_000}
"""Consumers that take a second per message, by mode."""
BACKLOG = 30
"""Messages that wait for each of them, more than it takes during the measurement."""
NEIGHBOURS_S = {"tiny": 2.0, "quick": 10.0, "full": 20.0}

BULK_CONSUMERS = 20
BULK = {"tiny": 2_000, "quick": 20_000, "full": 20_000}
"""Messages of low priority, for all consumers together, by mode."""
URGENT_RATE = 10
"""Messages of high priority per second."""
IDLE_S = {"tiny": 5.0, "quick": 10.0, "full": 30.0}
"""Seconds for which high priority is measured on the idle broker, by mode."""
BULK_S = 300.0
IN_BATCHES = {"connections": 4, "together": 100}


def _percentiles(values: Sequence[float], shares: dict[str, float], prefix: str = "") -> Values:
    return {f"{prefix}{name}": percentile(values, share) for name, share in shares.items()}


def _compare(values: Sequence[float], base: Sequence[float], shares: dict[str, float]) -> Values:
    return {
        name: percentile(values, share) / percentile(base, share) for name, share in shares.items()
    }


def deliver_at_rate(stage: Stage, rate: int) -> Values:
    (consumer,) = stage.consumers("take")
    flow = stage.deliver_steadily(consumer, rate, stage.sizes.latency_s)
    latencies = _percentiles(flow.latencies_ms(consumer), P50_P99)
    return latencies | {"acknowledged": percentile(flow.waits_ms(), 0.5)}


def deliver_scheduled(stage: Stage) -> Values:
    """Publish ahead of time messages that become due one by one, then messages of one instant."""
    (consumer,) = stage.consumers("take")
    stage.deliver(100, [consumer])
    count = int(DUE_RATE * stage.sizes.latency_s)
    spread = _lateness_ms(stage, consumer, count, 1000 / DUE_RATE)
    burst = _lateness_ms(stage, consumer, DUE_RATE, 0.0)
    return _percentiles(spread, P50_P99) | {"most": max(spread), "burst": max(burst)}


def _lateness_ms(stage: Stage, consumer: int, count: int, step_ms: float) -> list[float]:
    """Return each message's lateness. Database and sink share this machine's clock."""
    start_ms = int((time.time() + LEAD_S + count / PUBLISH_RATE) * 1000)
    # Of ``count`` consecutive numbers each has a different remainder.
    due_ms = [start_ms + int(place * step_ms) for place in range(count)]
    route = stage.batch(*({"deliver_at": it} for it in due_ms))
    flow = stage.deliver(count, [consumer], route, connections=2, together=500)
    clock_offset_ns = time.monotonic_ns() - time.time_ns()
    due_ns = [it * 1_000_000 + clock_offset_ns for it in due_ms]
    if max(flow.answered.values()) > due_ns[0]:
        raise BenchError("The messages were not published before they were due.")
    late = [(at - due_ns[number % count]) / 1e6 for number, at in flow.arrived[consumer].items()]
    if min(late) < 0:
        raise BenchError(f"A message came {-min(late):.3f} ms early.")
    return late


def isolate(stage: Stage) -> Values:
    """Measure a healthy consumer alone, beside a hanging one, and beside one that responds 500."""
    alone = _latencies_beside(stage)
    values = _percentiles(alone, P50_P99, "alone_")
    for behavior in ("hang", "fail"):
        found = _latencies_beside(stage, behavior)
        for name, ratio in _compare(found, alone, P50_P99).items():
            values[f"{behavior}_{name}"] = ratio
            values[f"{behavior}_{name}_ms"] = percentile(found, P50_P99[name])
    return values


def _latencies_beside(stage: Stage, *neighbour: str) -> list[float]:
    healthy, *_ = stage.consumers("take", *neighbour, timeout_ms=TIMEOUT_MS)
    return stage.deliver_steadily(healthy, SLOW, stage.sizes.latency_s).latencies_ms(healthy)


def crowd(stage: Stage) -> Values:
    """Measure the healthy consumer alone, then while a thousand slow ones have a backlog.

    The second measurement begins, without a warm-up, when the backlog is accepted.
    """
    count = NEIGHBOURS[stage.sizes.name]
    event_types = ["healthy", *(f"slow.{number}" for number in range(count))]
    healthy, *_ = stage.consumers(
        "take", *["slow"] * count, settings=[{"event_types": [it]} for it in event_types]
    )
    single = stage.broker.single()
    route = replace(single, headers={**single.headers, "Hookstation-Event-Type": "healthy"})
    slow = stage.batch(*({"event_type": it} for it in event_types[1:]))
    seconds = NEIGHBOURS_S[stage.sizes.name]
    alone = stage.deliver_steadily(healthy, SLOW, seconds, route).latencies_ms(healthy)
    stage.deliver(count * BACKLOG, [], slow, **IN_BATCHES)
    beside = stage.deliver(int(SLOW * seconds), [healthy], route, rate=SLOW).latencies_ms(healthy)
    stage.consumers("take")  # waiting deliveries are cancelled with their consumers
    return {
        **_percentiles(alone, P50_P99, "alone_"),
        **_percentiles(beside, P50_P99, "beside_"),
        **_compare(beside, alone, P50_P99),
    }


def prioritize(stage: Stage) -> Values:
    """Measure high priority on an idle broker, and beside a bulk load of low priority.

    The second measurement lasts from the first bulk message to the last one's arrival. The
    high-priority messages go to one of the consumers of the bulk load.
    """
    event_types = [[f"bulk.{number}"] for number in range(BULK_CONSUMERS)]
    event_types[0].append("urgent")
    consumers = stage.consumers(
        *["take"] * BULK_CONSUMERS, settings=[{"event_types": it} for it in event_types]
    )
    receiver, count = consumers[0], BULK[stage.sizes.name]
    single = stage.broker.single()
    headers = {"Hookstation-Priority": "9", "Hookstation-Event-Type": "urgent"}
    urgent = replace(single, headers={**single.headers, **headers})
    low = stage.batch(*({"event_type": it[0], "priority": 0} for it in event_types))
    idle_count = int(URGENT_RATE * IDLE_S[stage.sizes.name])
    idle = stage.deliver(idle_count, [receiver], urgent, rate=URGENT_RATE).latencies_ms(receiver)
    urgent_count = int(URGENT_RATE * BULK_S)
    with (
        stage.publish(count, consumers, low, **IN_BATCHES) as bulk,
        stage.publish(urgent_count, [receiver], urgent, rate=URGENT_RATE) as high,
    ):
        bulk.wait_for(count, stage.progress, BULK_S)
        high.poll()
    busy = high.flow.latencies_ms(receiver)
    return {
        "rate": count / bulk.flow.seconds,
        "count": float(len(busy)),
        **_percentiles(idle, P50_P95, "idle_"),
        **_percentiles(busy, P50_P95, "busy_"),
        **_compare(busy, idle, P50_P95),
    }


def _steady(rate: int, p50: tuple[float, float], p99: tuple[float, float]) -> Scenario:
    title = f"POST sent to POST received, {rate} messages/s"
    figures = [
        Figure("p50", f"{title}, p50", "ms", *p50, digits=2),
        Figure("p99", f"{title}, p99", "ms", *p99, digits=2),
        Figure("acknowledged", "- POST sent to acknowledged, p50", "ms", digits=2),
    ]
    measure = partial(deliver_at_rate, rate=rate)
    return Scenario(f"latency{rate}", measure, figures, quick_on_sqlite=rate == SLOW)


STEADY_SLOW = _steady(SLOW, p50=(5.0, 2.5), p99=(10.0, 6.0))
STEADY_FAST = _steady(FAST, p50=(4.0, 2.0), p99=(9.0, 5.0))
LATENESS = Scenario(
    "lateness",
    deliver_scheduled,
    [
        Figure("p50", f"due to received, {DUE_RATE:,} messages/s due, p50", "ms", 5.0, 2.0, 2),
        Figure("p99", f"due to received, {DUE_RATE:,} messages/s due, p99", "ms", 10.0, 5.0, 2),
        Figure("most", "- the latest of them", "ms", digits=2),
        Figure("burst", f"- the last of {DUE_RATE:,} that are due at once", "ms"),
    ],
    on_sqlite=False,
    hookstation_only=True,
)


def _isolation() -> list[Figure]:
    figures = [
        Figure(f"alone_{name}", f"healthy consumer alone, {name}", "ms", digits=2)
        for name in P50_P99
    ]
    for behavior, neighbour in (("hang", "a hanging one"), ("fail", "a failing one")):
        for name in P50_P99:
            title = f"healthy consumer's {name} beside {neighbour}, {SLOW} messages/s"
            key = f"{behavior}_{name}"
            figures += [
                Figure(key, title, "x of alone", must=1.5, aim=1.1),
                Figure(f"{key}_ms", "- the same", "ms", digits=2),
            ]
    return figures


def _comparison(title: str, base: str, measured: str, alone: str) -> list[Figure]:
    """Return figures of each percentile: the ratio, and both values."""
    figures = []
    for name in P50_P99 if base == "alone" else P50_P95:
        must = None if name == "p50" else 3.0
        figures += [
            Figure(name, title.format(name), f"x of {base}", must),
            Figure(f"{measured}_{name}", "- the same", "ms", digits=2),
            Figure(f"{base}_{name}", alone, "ms", digits=2),
        ]
    return figures


ISOLATION = Scenario("isolation", isolate, _isolation())
NEIGHBOUR_TITLE = f"healthy consumer's {{}} beside 1,000 that take a second, {SLOW} messages/s"
NEIGHBOURHOOD = Scenario(
    "neighbours",
    crowd,
    _comparison(NEIGHBOUR_TITLE, "alone", "beside", "- alone"),
    in_quick=False,
    hookstation_only=True,
)
URGENT_TITLE = (
    f"high priority, {URGENT_RATE} messages/s, {{}} beside {BULK_CONSUMERS} consumers' bulk load"
    " of low priority"
)
URGENT = Scenario(
    "urgent",
    prioritize,
    [
        *_comparison(URGENT_TITLE, "idle", "busy", "- on an idle broker"),
        Figure("rate", "- deliveries/s of the bulk load meanwhile", "/s"),
        Figure("count", "- messages of high priority meanwhile", ""),
    ],
    in_quick=False,
    hookstation_only=True,
)
