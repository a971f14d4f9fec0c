"""Publish messages as fast as they are accepted, and measure until all are delivered."""

from bench.adapters import BenchError
from bench.figures import Figure
from bench.sink import Manner
from bench.stage import Row, Stage, Values

BATCH = 100
BATCH_CONNECTIONS = 8
GROUPS = ("web", "worker", "supervisor", "database")


def one(stage: Stage) -> Values:
    """Measure one consumer."""
    return _deliver(stage, "one", 1, stage.sizes.messages)


def five(stage: Stage) -> Values:
    """Measure five consumers; each message is delivered five times."""
    return _deliver(stage, "five", 5, stage.sizes.messages // 4)


def batch(stage: Stage) -> Values:
    """Measure the batch endpoint while the messages are delivered to one consumer."""
    consumers = stage.consumers("take")
    route = stage.broker.batch()
    if route is None:
        raise BenchError("It has no batch endpoint.")
    with stage.follow(
        stage.sizes.batch,
        consumers,
        route=route,
        connections=BATCH_CONNECTIONS,
        together=BATCH,
    ) as following:
        flow = following.finish(stage.tell)
    rate = len(flow.sent) / flow.accepting_seconds
    values = {"batch.rate": rate, "batch.delivered": flow.deliveries / flow.seconds}
    if alone := stage.values.get("one.rate"):
        values["batch.ratio"] = rate / alone
    return values


def _deliver(stage: Stage, row: str, count: int, messages: int) -> Values:
    manners: list[Manner] = ["take"] * count
    consumers = stage.consumers(*manners)
    stage.run(stage.sizes.warm_up, consumers)
    before = stage.look()
    flow = stage.run(messages, consumers)
    used = stage.look().since(before)
    per_delivery = {group: seconds / flow.deliveries * 1e3 for group, seconds in used.items()}
    return {
        f"{row}.rate": flow.deliveries / flow.seconds,
        f"{row}.cpu": sum(per_delivery.values()),
        **{f"{row}.cpu_{group}": ms for group, ms in per_delivery.items()},
        f"{row}.twice": float(flow.twice),
    }


def _split(row: str, of: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{row}.cpu_{group}", f"- of it {group}", "ms", digits=3) for group in GROUPS
    )


ROWS = (
    Row(
        "one",
        (
            Figure(
                "one.rate",
                "accepted messages/s while delivering, 1 consumer",
                "/s",
                must=2.5,
                aim=4.0,
                is_more_better=True,
                is_relative=True,
                digits=0,
            ),
            Figure(
                "one.cpu",
                "CPU per delivered message (broker + database), 1 consumer",
                "ms",
                must=0.75,
                aim=0.4,
                digits=3,
            ),
            *_split("one", "message"),
            Figure("one.twice", "- delivered twice", "", digits=0),
        ),
        one,
        quick_on_sqlite=True,
    ),
    Row(
        "five",
        (
            Figure(
                "five.rate",
                "deliveries/s, 5 consumers",
                "/s",
                must=3.0,
                aim=5.0,
                is_more_better=True,
                is_relative=True,
                digits=0,
            ),
            Figure("five.cpu", "CPU per delivery, 5 consumers", "ms", digits=3),
            *_split("five", "delivery"),
            Figure("five.twice", "- delivered twice", "", digits=0),
        ),
        five,
        quick_on_sqlite=True,
    ),
    Row(
        "batch",
        (
            Figure(
                "batch.rate",
                "batch endpoint (100 in a request), messages/s accepted while delivering",
                "/s",
                must=10.0,
                aim=20.0,
                is_more_better=True,
                is_relative=True,
                reference="one.rate",
                digits=0,
            ),
            Figure("batch.ratio", "- times one message in a request", "x"),
            Figure("batch.delivered", "- delivered/s", "/s", digits=0),
        ),
        batch,
    ),
)
