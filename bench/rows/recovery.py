"""Kill every process of the broker under load, and measure the recovery."""

import time

from bench.adapters import BenchError
from bench.figures import Figure
from bench.flow import POLL_S
from bench.stage import Row, Stage, Values

PATIENCE_S = 120.0
"""Seconds without a delivery after the kill, longer than any broker's lease."""


def recover(stage: Stage) -> Values:
    """Send SIGKILL when half of the messages have arrived, restart at once, and wait for all."""
    consumers = stage.consumers("take")
    half = stage.sizes.recovery // 2
    with stage.follow(stage.sizes.recovery, consumers) as following:
        end = time.monotonic() + PATIENCE_S
        while following.flow.deliveries < half:
            if time.monotonic() > end:
                raise BenchError("Half of the messages did not arrive in time.")
            following.look()
            time.sleep(POLL_S)
        killed_at = time.monotonic_ns()
        stage.broker.kill()
        stage.broker.start()
        flow = following.finish(stage.tell, PATIENCE_S)
    if flow.ended < killed_at:
        raise BenchError("All messages had arrived before the kill.")
    return {
        "recovery.seconds": (flow.ended - killed_at) / 1e9,
        "recovery.lost": float(flow.lost()),
        "recovery.twice": float(flow.twice),
    }


ROWS = (
    Row(
        "recovery",
        (
            Figure(
                "recovery.seconds",
                "kill -9 in the middle of 5,000 messages, restart, until all are delivered",
                "s",
                must=10.0,
                aim=4.0,
            ),
            Figure("recovery.lost", "- lost", "", must=0.0, aim=0.0, digits=0),
            Figure("recovery.twice", "- delivered twice", "", digits=0),
        ),
        recover,
    ),
)
