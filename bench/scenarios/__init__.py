"""List the scenarios in the order of the table and of the measurement.

Later ones depend on earlier ones: the tables fill, and the floor is compared with the throughput.
"""

from bench.scenarios import cost, latency, profile, pull, stream, tables, throughput
from bench.stage import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    throughput.ONE,
    throughput.FIVE,
    throughput.BATCHES,
    pull.RECEIVE,
    pull.WAITING,
    pull.SQS,
    stream.STREAM,
    latency.STEADY_SLOW,
    latency.STEADY_FAST,
    latency.LATENESS,
    throughput.RECOVERY,
    latency.ISOLATION,
    latency.NEIGHBOURHOOD,
    latency.URGENT,
    throughput.SHARED,
    throughput.ORDERING,
    cost.IDLE,
    cost.FLOOR,
    profile.PROFILE,
    tables.GROWTH,
    tables.MEMORY,
    tables.SCALE,
    tables.SCHEDULED,
    tables.DEAD_LETTERS,
)
