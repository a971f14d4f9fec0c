"""Publish messages as fast as they are accepted, and measure until all are delivered.

With one and five consumers, in batches, in the order of keys, with two pumps for one consumer, and
after every process was killed.
"""

import time

from bench.adapters import BenchError
from bench.load import Flow
from bench.stage import Figure, Scenario, Stage, Values, cpu_figures, cpu_values

BATCH = {"connections": 8, "together": 100}
"""Options of publishing in batches."""
MAX_IN_FLIGHT = 1_000
"""Requests in flight to a slow consumer, the highest allowed setting."""
KEYS = 25_000
CROWDS = {"tiny": 200, "quick": 20_000, "full": 100_000}
"""Messages of one ordering key that wait behind each other, by mode."""
CANCEL_S = 300.0
"""Seconds in which deliveries of a retired consumer are cancelled."""
BACKLOGS = {"tiny": 200, "quick": 3_000, "full": 10_000}
"""Messages that wait for a consumer of two pumps, by mode."""
LEASE_S = 120.0
"""Seconds without a delivery after a kill, longer than any broker's lease."""


def deliver_to_one(stage: Stage) -> Values:
    return _deliver(stage, 1, stage.sizes.messages)


def deliver_to_five(stage: Stage) -> Values:
    """Measure five consumers; each message is delivered five times."""
    return _deliver(stage, 5, stage.sizes.messages // 4)


def _deliver(stage: Stage, consumers: int, messages: int) -> Values:
    numbers = stage.consumers(*["take"] * consumers)
    stage.deliver(stage.sizes.warm_up, numbers)
    before = stage.cpu_times()
    flow = stage.deliver(messages, numbers)
    used = stage.cpu_times().since(before)
    cpu = cpu_values(used, 1e3 / flow.deliveries)
    return {"rate": flow.rate, **cpu, "twice": float(flow.duplicates)}


def publish_batches(stage: Stage) -> Values:
    """Measure the batch endpoint while the messages are delivered to one consumer."""
    flow = stage.deliver(stage.sizes.batch, stage.consumers("take"), stage.batch(), **BATCH)
    values = {"rate": flow.accepted_rate, "delivered": flow.rate}
    if alone := stage.values.get("one.rate"):
        values["ratio"] = flow.accepted_rate / alone
    return values


def recover(stage: Stage) -> Values:
    """Send SIGKILL when half of the messages have arrived, restart at once, and wait for all."""
    with stage.publish(stage.sizes.recovery, stage.consumers("take")) as following:
        following.wait_for(stage.sizes.recovery // 2, stage.progress, LEASE_S)
        killed_at = time.monotonic_ns()
        stage.broker.kill()
        stage.broker.start()
        flow = following.finish(stage.progress, LEASE_S)
    if flow.ended < killed_at:
        raise BenchError("All messages had arrived before the kill.")
    return {
        "seconds": (flow.ended - killed_at) / 1e9,
        "lost": float(flow.lost()),
        "twice": float(flow.duplicates),
    }


def share_pumps(stage: Stage) -> Values:
    """Drain the same backlog of one consumer with one of two pumps, then with both."""
    values = {}
    with stage.hookstation.restarted_with(HOOKSTATION_PUMPS="2"):
        for pumps in (1, 2):
            settings = {"max_in_flight": MAX_IN_FLIGHT, "max_pumps": pumps}
            consumers = stage.consumers("slow", settings=settings)
            flow = stage.deliver(
                BACKLOGS[stage.sizes.name], consumers, stage.batch(), connections=4, together=100
            )
            values[f"{pumps}"] = flow.rate
    return values | {"ratio": values["2"] / values["1"]}


def keep_order(stage: Stage) -> Values:
    """Measure deliveries per second without order, with it, and with it beside one crowded key.

    The unordered case is measured before and after, since a broker is fastest with empty tables.
    """
    before = _deliver_keys(stage, ordering=False)
    ordered = _deliver_keys(stage, ordering=True)
    crowded = _deliver_keys(stage, ordering=True, crowd=CROWDS[stage.sizes.name])
    plain = (before.rate + _deliver_keys(stage, ordering=False).rate) / 2
    return {
        "plain": plain,
        "rate": ordered.rate,
        "ratio": ordered.rate / plain,
        "crowded": crowded.rate,
        "crowded_ratio": crowded.rate / plain,
    }


def _deliver_keys(stage: Stage, *, ordering: bool, crowd: int = 0) -> Flow:
    settings = {"ordering": ordering, "max_in_flight": MAX_IN_FLIGHT}
    consumers = stage.consumers("later", settings=settings)
    if crowd:
        stage.deliver(crowd, [], stage.batch({"ordering_key": "crowded"}), **BATCH)
        # All are fanned out when the number of unfinished deliveries stops growing.
        depth = -1
        while (depth_now := stage.hookstation.depth()) > depth:
            depth = depth_now
            time.sleep(1.0)
    keys = [{"ordering_key": f"key-{number}"} for number in range(KEYS)]
    flow = stage.deliver(stage.sizes.batch, consumers, stage.batch(*keys), **BATCH)
    if crowd:
        stage.consumers("take")  # waiting deliveries are cancelled with their consumer
        end = time.monotonic() + CANCEL_S
        while stage.hookstation.depth():
            if time.monotonic() > end:
                raise BenchError("Deliveries behind a key do not end with their consumer.")
            time.sleep(0.5)
    return flow


TWICE = Figure("twice", "- delivered twice", "")
ONE = Scenario(
    "one",
    deliver_to_one,
    [
        Figure(
            "rate",
            "accepted messages/s while delivering, 1 consumer",
            "/s",
            must=2.5,
            aim=4.0,
            better="more",
            reference="one.rate",
        ),
        Figure(
            "cpu", "CPU per delivered message (broker + database), 1 consumer", "ms", 0.75, 0.4, 3
        ),
        *cpu_figures(),
        TWICE,
    ],
    quick_on_sqlite=True,
)
FIVE = Scenario(
    "five",
    deliver_to_five,
    [
        Figure("rate", "deliveries/s, 5 consumers", "/s", 3.0, 5.0, 0, "more", "five.rate"),
        Figure("cpu", "CPU per delivery, 5 consumers", "ms", digits=3),
        *cpu_figures(),
        TWICE,
    ],
    quick_on_sqlite=True,
)
BATCHES = Scenario(
    "batch",
    publish_batches,
    [
        Figure(
            "rate",
            "batch endpoint (100 in a request), messages/s accepted while delivering",
            "/s",
            must=10.0,
            aim=20.0,
            better="more",
            reference="one.rate",
        ),
        Figure("ratio", "- times one message in a request", "x", digits=1),
        Figure("delivered", "- delivered/s", "/s"),
    ],
)
RECOVERY = Scenario(
    "recovery",
    recover,
    [
        Figure(
            "seconds",
            "kill -9 in the middle of 5,000 messages, restart, until all are delivered",
            "s",
            must=10.0,
            aim=4.0,
        ),
        Figure("lost", "- lost", "", must=0.0, aim=0.0),
        TWICE,
    ],
)
SHARED = Scenario(
    "shared",
    share_pumps,
    [
        Figure(
            "ratio",
            f"one consumer that takes a second, {MAX_IN_FLIGHT:,} at once: two pumps",
            "x of one pump",
            aim=1.5,
        ),
        Figure("2", "- deliveries/s with two pumps", "/s"),
        Figure("1", "- deliveries/s with one pump", "/s"),
    ],
    in_quick=False,
    hookstation_only=True,
)
ORDERING = Scenario(
    "ordering",
    keep_order,
    [
        Figure(
            "plain",
            f"batches to a consumer that takes 100 ms, {MAX_IN_FLIGHT:,} at once, no order",
            "/s",
        ),
        Figure("rate", f"- in the order of {KEYS:,} keys", "/s"),
        Figure("ratio", "- the same", "x of no order", must=0.9, better="more"),
        Figure("crowded", "- beside one key with thousands waiting", "/s"),
        Figure("crowded_ratio", "- the same", "x of no order", must=0.9, better="more"),
    ],
    hookstation_only=True,
)
