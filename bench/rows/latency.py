"""Measure the time from a producer's POST to the POST that reaches the consumer."""

from collections.abc import Callable

from bench.figures import Figure, percentile
from bench.stage import Row, Stage, Values

SLOW, FAST = 50, 450
"""Messages per second."""


def _at(rate: int) -> Callable[[Stage], Values]:
    def measure(stage: Stage) -> Values:
        (consumer,) = stage.consumers("take")
        stage.run(rate, [consumer], rate=rate)
        flow = stage.run(int(rate * stage.sizes.latency_s), [consumer], rate=rate)
        latencies = flow.latencies_ms(consumer)
        return {
            f"latency{rate}.p50": percentile(latencies, 0.5),
            f"latency{rate}.p99": percentile(latencies, 0.99),
            f"latency{rate}.acknowledged": percentile(flow.waits_ms(), 0.5),
        }

    return measure


def _row(rate: int, p50: tuple[float, float], p99: tuple[float, float]) -> Row:
    title = f"POST sent to POST received, {rate} messages/s"
    key = f"latency{rate}"
    return Row(
        key,
        (
            Figure(f"{key}.p50", f"{title}, p50", "ms", must=p50[0], aim=p50[1], digits=2),
            Figure(f"{key}.p99", f"{title}, p99", "ms", must=p99[0], aim=p99[1], digits=2),
            Figure(f"{key}.acknowledged", "- POST sent to acknowledged, p50", "ms", digits=2),
        ),
        _at(rate),
        quick_on_sqlite=rate == SLOW,
    )


ROWS = (
    _row(SLOW, p50=(5.0, 2.5), p99=(10.0, 6.0)),
    _row(FAST, p50=(4.0, 2.0), p99=(9.0, 5.0)),
)
