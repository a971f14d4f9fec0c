"""Measure throughput while the tables fill with history."""

from statistics import median

from bench import tables
from bench.figures import Figure
from bench.stage import Row, Stage, Values

STEPS = {"tiny": (100, 1_000), "quick": (1_000, 100_000), "full": (10_000, 1_000_000, 10_000_000)}
"""Messages of history by mode, each with two finished deliveries."""
TAKES = 3
"""Measurements at each step; the median counts."""


def grow(stage: Stage) -> Values:
    """Return one consumer's throughput at each step, and its ratio to the first step."""
    values: Values = {}
    steps = STEPS[stage.sizes.name]
    for step in steps:
        seconds = tables.fill(stage, finished=step)
        takes = [_take(stage) for _ in range(TAKES)]
        values[f"growth.rate_{step}"] = median(rate for rate, _ in takes)
        values[f"growth.cpu_{step}"] = median(cpu_ms for _, cpu_ms in takes)
    values["growth.fill"] = (steps[-1] - steps[-2]) / seconds
    for name in ("rate", "cpu"):
        values[f"growth.{name}"] = (
            values[f"growth.{name}_{steps[-1]}"] / values[f"growth.{name}_{steps[0]}"]
        )
    return values


def _take(stage: Stage) -> tuple[float, float]:
    """Return messages per second, and CPU milliseconds per message of broker and database."""
    consumers = stage.consumers("take")
    stage.run(stage.sizes.warm_up, consumers)
    before = stage.look()
    flow = stage.run(stage.sizes.messages // 2, consumers)
    used = sum(stage.look().since(before).values())
    return flow.deliveries / flow.seconds, used / flow.deliveries * 1e3


def _figures() -> tuple[Figure, ...]:
    figures = [
        Figure(
            "growth.rate",
            "throughput with the longest history, 1 consumer",
            "x of the shortest",
            digits=2,
        ),
        Figure("growth.cpu", "- CPU per message", "x", digits=2),
    ]
    for step in sorted({step for steps in STEPS.values() for step in steps}):
        figures += [
            Figure(f"growth.rate_{step}", f"- {step:,} messages of history", "/s", digits=0),
            Figure(f"growth.cpu_{step}", "- CPU per message then", "ms", digits=3),
        ]
    fill = "- history made at (two deliveries and attempts with each message)"
    return (*figures, Figure("growth.fill", fill, "messages/s", digits=0))


ROWS = (Row("growth", _figures(), grow, in_quick=False, on_sqlite=False, ours_alone=True),)
