"""Measure memory of web server and workers with and without a large backlog."""

import time
from statistics import median

from bench import cpu, tables
from bench.figures import Figure
from bench.stage import Row, Stage, Values

RATE = 50
"""Messages per second to a healthy consumer meanwhile."""
POLL_S = 1.0


def hold(stage: Stage) -> Values:
    """Measure a freshly started broker under light traffic, without and then with the backlog."""
    rows = stage.sizes.rows // 10
    without = _memory(stage)
    tables.fill(stage, waiting=rows)
    with_pile = _memory(stage)
    return {
        "memory.growth": (with_pile / without - 1) * 100,
        "memory.without": without / 2**20,
        "memory.with": with_pile / 2**20,
    }


def _memory(stage: Stage) -> float:
    """Return the median over the second half of the time, after everything was used once."""
    stage.broker.stop()
    stage.broker.start()
    (consumer,) = stage.consumers("take")
    count = int(RATE * 2 * stage.sizes.idle_s)
    with stage.follow(count, [consumer], rate=RATE) as following:
        sizes = []
        while not following.is_done():
            groups = stage.broker.processes()
            sizes.append(cpu.memory([*groups["web"], *groups["worker"]]))
            stage.tell(following.flow.deliveries, count)
            time.sleep(POLL_S)
        following.finish(stage.tell)
    return median(sizes[len(sizes) // 2 :])


ROWS = (
    Row(
        "memory",
        (
            Figure(
                "memory.growth",
                "memory of web and workers with a tenth of the large table's rows waiting",
                "% more",
                must=20.0,
                aim=5.0,
            ),
            Figure("memory.without", "- without", "MiB", digits=1),
            Figure("memory.with", "- with", "MiB", digits=1),
        ),
        hold,
        in_quick=False,
        on_sqlite=False,
        ours_alone=True,
    ),
)
