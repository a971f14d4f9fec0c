"""Measure the idle broker's CPU time, and its memory after work."""

import time

from bench import cpu
from bench.figures import Figure
from bench.rows.throughput import GROUPS
from bench.stage import Row, Stage, Values

SETTLE_S = 2.0
"""Seconds for earlier work to finish."""


def rest(stage: Stage) -> Values:
    """Return CPU time while nothing is published, as a share of one core, and memory."""
    stage.consumers("take")
    time.sleep(SETTLE_S)
    start, before = time.monotonic(), stage.look()
    time.sleep(stage.sizes.idle_s)
    used = stage.look().since(before)
    passed = time.monotonic() - start
    share = {group: seconds / passed * 100 for group, seconds in used.items()}
    groups = stage.broker.processes()
    return {
        "rest.cpu": sum(share.values()),
        **{f"rest.cpu_{group}": percent for group, percent in share.items()},
        "rest.memory": sum(cpu.memory(pids) for pids in groups.values()) / 2**20,
    }


ROWS = (
    Row(
        "rest",
        (
            Figure(
                "rest.cpu",
                "idle CPU of the whole broker and its database",
                "% of a core",
                must=3.0,
                aim=1.0,
                digits=2,
            ),
            *(
                Figure(f"rest.cpu_{group}", f"- of it {group}", "% of a core", digits=2)
                for group in GROUPS
            ),
            Figure(
                "rest.memory", "memory of all its processes after the rows above", "MiB", digits=0
            ),
        ),
        rest,
    ),
)
