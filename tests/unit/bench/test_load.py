"""The benchmark's counts: lost, duplicate, refused and broken-off messages are noticed."""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from bench.adapters import BenchError, Route, one
from bench.load import Following, Log, Plan
from bench.sink import Sink
from tests.support.receiver import Receiver, Reply

COUNT = 20
CONSUMER = 7


@pytest.fixture
def log() -> Iterator[Log]:
    """The log of a sink, written by the test itself."""
    log = Log.create()
    yield log
    log.remove()


def plan(receiver: Receiver, path: str = "/status/202", **values: int) -> Plan:
    route = Route("127.0.0.1", receiver.port, path, {"X-Key": "k"}, one)
    return Plan(route, **{"first": 100, "count": COUNT, "connections": 2, **values})


def arrive(log: Log, *numbers: int, consumer: int = CONSUMER) -> None:
    for number in numbers:
        log.append((consumer, number, time.monotonic_ns(), 0, 0))


def test_what_is_sent_is_answered_and_arrives(receiver: Receiver, log: Log) -> None:
    with Following(plan(receiver), log, [CONSUMER]) as following:
        receiver.wait_for(COUNT)
        arrive(log, *range(100, 120))
        flow = following.finish()

    assert sorted(flow.sent) == list(range(100, 120))
    assert len(flow.answered) == flow.deliveries == COUNT
    assert (flow.unanswered, flow.duplicates) == (0, 0)
    assert len(flow.latencies_ms(CONSUMER)) == COUNT
    assert all(wait > 0 for wait in flow.waits_ms())
    bodies = {request.body for request in receiver.requests()}
    assert len(bodies) == COUNT
    assert {len(body) for body in bodies} == {1024}
    assert receiver.requests()[0].header("X-Key") == "k"


def test_a_lost_message_makes_the_figure_worthless(receiver: Receiver, log: Log) -> None:
    with Following(plan(receiver), log, [CONSUMER]) as following:
        receiver.wait_for(COUNT)
        arrive(log, *range(100, 119))
        with pytest.raises(BenchError, match="LOST: 1 deliveries"):
            following.finish(stalled_after_s=1)


def test_each_consumer_has_to_get_each_message(receiver: Receiver, log: Log) -> None:
    with Following(plan(receiver), log, [CONSUMER, 8]) as following:
        receiver.wait_for(COUNT)
        arrive(log, *range(100, 120))
        arrive(log, *range(100, 118), consumer=8)
        arrive(log, *range(100, 120), consumer=9)  # a consumer that is not followed
        with pytest.raises(BenchError, match="LOST: 2 deliveries"):
            following.finish(stalled_after_s=1)


def test_what_arrives_twice_is_counted(receiver: Receiver, log: Log) -> None:
    arrive(log, 100)  # from an earlier run
    with Following(plan(receiver), log, [CONSUMER]) as following:
        receiver.wait_for(COUNT)
        arrive(log, *range(100, 120), 100, 119, 99, 120)
        flow = following.finish()

    assert flow.duplicates == 2
    assert flow.deliveries == COUNT


def test_a_refusal_ends_it_with_its_status(receiver: Receiver, log: Log) -> None:
    receiver.script("/m", [Reply(202), Reply(429)])
    with (
        Following(plan(receiver, "/m", connections=1), log, [CONSUMER]) as following,
        pytest.raises(BenchError, match="Message 101 was refused: status 429"),
    ):
        following.finish()


def test_a_broken_request_is_unanswered_and_nothing_is_expected_of_it(
    receiver: Receiver, log: Log
) -> None:
    receiver.script("/m", [Reply(202), Reply(202), Reply(reset=True), Reply(202)])
    with Following(plan(receiver, "/m", connections=1), log, [CONSUMER]) as following:
        receiver.wait_for(COUNT)
        arrive(log, *(number for number in range(100, 120) if number != 102))
        flow = following.finish()

    assert flow.unanswered == 1
    assert 102 not in flow.sent
    assert len(flow.sent) == COUNT - 1


def test_the_numbers_that_follow_wait_for_a_broker_that_is_away(log: Log) -> None:
    with Sink() as sink:
        port = sink.port
    route = Route("127.0.0.1", port, "/status/202", {}, one)
    with Following(Plan(route, first=1, count=3), log, []) as following:
        time.sleep(0.5)
        assert not following.is_done()
    assert following.flow.unanswered == 0


def test_nothing_acknowledged_is_no_success(receiver: Receiver, log: Log) -> None:
    receiver.script("/m", [Reply(reset=True)])
    with (
        Following(plan(receiver, "/m"), log, [CONSUMER]) as following,
        pytest.raises(BenchError, match="No message was acknowledged"),
    ):
        following.finish()


def test_an_open_loop_keeps_its_rate_whatever_the_answers_do(receiver: Receiver, log: Log) -> None:
    receiver.script("/m", [Reply(202, delay_ms=300)])
    route = Route("127.0.0.1", receiver.port, "/m", {}, one)
    with Following(Plan(route, first=1, count=20, rate=100), log, []) as following:
        flow = following.finish()

    sent = sorted(flow.sent.values())
    gaps = [(later - earlier) / 1e9 for earlier, later in pairwise(sent)]
    # Waiting for an answer takes 300 ms. The bound leaves room for a busy machine.
    assert sum(gaps) / len(gaps) < 0.1


def test_messages_go_together_in_one_request(receiver: Receiver, log: Log) -> None:
    route = Route("127.0.0.1", receiver.port, "/status/202", {}, b"\n".join)
    with Following(Plan(route, first=1, count=25, together=10), log, []) as following:
        flow = following.finish()

    assert len(flow.sent) == 25
    assert sorted(r.body.count(b"\n") + 1 for r in receiver.requests()) == [5, 10, 10]
