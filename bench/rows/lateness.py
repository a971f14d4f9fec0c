"""Measure how late scheduled messages reach their consumer."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bench.adapters import BenchError
from bench.bodies import number_in
from bench.figures import Figure, percentile
from bench.stage import Row, Stage, Values

RATE = 2000
"""Messages that become due per second."""
TOGETHER = 500
"""Messages per request while publishing."""
LEAD_S, HANDED_IN = 3.0, 2500
"""Time before the first message is due: a reserve, and the time to publish at so many per
second."""


def lateness(stage: Stage) -> Values:
    """Publish ahead of time messages that become due one by one, then messages of one instant."""
    (consumer,) = stage.consumers("take")
    stage.run(100, [consumer])
    spread = _late_ms(stage, consumer, int(RATE * stage.sizes.latency_s), 1000 / RATE)
    burst = _late_ms(stage, consumer, RATE, 0.0)
    return {
        "lateness.p50": percentile(spread, 0.5),
        "lateness.p99": percentile(spread, 0.99),
        "lateness.most": max(spread),
        "lateness.burst": max(burst),
    }


def pack_scheduled(bodies: Sequence[bytes], *, start_ms: int, step_ms: float, count: int) -> bytes:
    """Return the batch endpoint's array, with the due time of each number."""
    return json.dumps(
        [
            {"body": body.decode(), "deliver_at": _due_ms(body, start_ms, step_ms, count)}
            for body in bodies
        ]
    ).encode()


def _due_ms(body: bytes, start_ms: int, step_ms: float, count: int) -> int:
    # Of ``count`` consecutive numbers each has a different remainder.
    return start_ms + int((number_in(body) or 0) % count * step_ms)


def _late_ms(stage: Stage, consumer: int, count: int, step_ms: float) -> list[float]:
    """Return each message's lateness. Database and sink share this machine's clock."""
    route = stage.broker.batch()
    if route is None:
        raise BenchError("It takes no batches.")
    start_ms = int((time.time() + LEAD_S + count / HANDED_IN) * 1000)
    pack = partial(pack_scheduled, start_ms=start_ms, step_ms=step_ms, count=count)
    with stage.follow(
        count, [consumer], route=replace(route, pack=pack), connections=2, together=TOGETHER
    ) as following:
        flow = following.finish(stage.tell)
    if max(flow.answered.values()) > _ticks_at(start_ms):
        raise BenchError("The messages were not handed in before they were due.")
    late = [
        (at - _ticks_at(start_ms + int(number % count * step_ms))) / 1e6
        for number, at in flow.arrived[consumer].items()
    ]
    if min(late) < 0:
        raise BenchError(f"A message came {-min(late):.3f} ms early.")
    return late


def _ticks_at(instant_ms: int) -> int:
    """Return the monotonic clock's value at an instant."""
    return time.monotonic_ns() + instant_ms * 1_000_000 - time.time_ns()


_TITLE = f"due to received, {RATE:,} messages/s due"
ROWS = (
    Row(
        "lateness",
        (
            Figure("lateness.p50", f"{_TITLE}, p50", "ms", must=5.0, aim=2.0, digits=2),
            Figure("lateness.p99", f"{_TITLE}, p99", "ms", must=10.0, aim=5.0, digits=2),
            Figure("lateness.most", "- the latest of them", "ms", digits=2),
            Figure("lateness.burst", f"- the last of {RATE:,} that are due at once", "ms"),
        ),
        lateness,
        on_sqlite=False,
        ours_alone=True,
    ),
)
