"""Measure what a second pump adds for one consumer that takes a second per message."""

from bench import tables
from bench.figures import Figure
from bench.stage import Row, Stage, Values

COUNT = {"tiny": 200, "quick": 3_000, "full": 10_000}
"""Messages that wait for it, by mode."""
TOGETHER, CONNECTIONS = 100, 4
AT_ONCE = 1_000


def measure(stage: Stage) -> Values:
    """Drain the same backlog with one of two pumps, then with both."""
    environment = tables.ours(stage).environment
    stage.broker.stop()
    environment["HOOKSTATION_PUMPS"] = "2"
    try:
        stage.broker.start()
        values = {f"shared.{pumps}": _drain(stage, pumps) for pumps in (1, 2)}
    finally:
        stage.broker.stop()
        del environment["HOOKSTATION_PUMPS"]
        stage.broker.start()
    return values | {"shared.ratio": values["shared.2"] / values["shared.1"]}


def _drain(stage: Stage, pumps: int) -> float:
    """Return deliveries per second."""
    settings = {"max_in_flight": AT_ONCE, "max_pumps": pumps}
    numbers = stage.consumers("slow", settings=settings)
    route, count = stage.broker.batch(), COUNT[stage.sizes.name]
    with stage.follow(
        count, numbers, route=route, connections=CONNECTIONS, together=TOGETHER
    ) as following:
        return count / following.finish(stage.tell).seconds


TITLE = f"one consumer that takes a second, {AT_ONCE:,} at once: two pumps"
FIGURES = (
    Figure("shared.ratio", TITLE, "x of one pump", aim=1.5, digits=2),
    Figure("shared.2", "- deliveries/s with two pumps", "/s", digits=0),
    Figure("shared.1", "- deliveries/s with one pump", "/s", digits=0),
)
ROWS = (Row("shared", FIGURES, measure, ours_alone=True, in_quick=False),)
