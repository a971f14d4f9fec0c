"""Many calls at a time, kept connections, and the closing of a sender."""

import os
import resource
from contextlib import closing

import pytest

from delivery.core.outcome import Outcome
from tests.support.receiver import Receiver, Reply
from tests.support.sending import Loop, a_call


def fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_one_connection_for_many_posts(loop: Loop, receiver: Receiver) -> None:
    answers = [loop.post(receiver.url(f"/{n}")) for n in range(100)]

    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
    assert receiver.connections == 1
    assert answers[0].connect_ms is not None
    assert {answer.connect_ms for answer in answers[1:]} == {None}


def test_idle_connections_are_limited(receiver: Receiver) -> None:
    with closing(Loop(max_connections=3)) as loop:
        first = loop.run(*(a_call(receiver.url()) for _ in range(20)))
        again = loop.run(*(a_call(receiver.url()) for _ in range(20)))

    assert {answer.outcome for answer in first + again} == {Outcome.DELIVERED}
    assert receiver.connections >= 37


def test_a_call_that_waits_for_its_answer_costs_nothing(loop: Loop, receiver: Receiver) -> None:
    loop.sender.start(a_call(receiver.url("/hang"), body=os.urandom(3 << 20)))
    loop.until(lambda: len(receiver.requests()) == 1)
    loop.turn()

    assert loop.selector.select(0) == []


def test_a_kept_connection_that_the_consumer_closed_is_replaced(
    loop: Loop, receiver: Receiver
) -> None:
    # The response promises keep-alive, but the receiver closes the connection.
    receiver.script("/x", [Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")])

    answers = [loop.post(receiver.url("/x")) for _ in range(5)]

    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
    assert len(receiver.requests()) == 5


def test_three_hundred_at_a_time(loop: Loop, receiver: Receiver) -> None:
    calls = [a_call(receiver.url("/ok"), body=b"%d" % n) for n in range(300)]
    answers = loop.run(*calls)
    for _ in range(300):
        loop.sender.start(a_call(receiver.url("/hang")))
    loop.until(lambda: len(receiver.requests("/hang")) == 300)

    assert [answer.key for answer in answers] == [call.key for call in calls]
    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
    assert sorted(int(request.body) for request in receiver.requests("/ok")) == list(range(300))
    assert loop.sender.in_flight == 300
    assert receiver.max_concurrency == 300


def test_idle_connections_are_not_watched(loop: Loop, receiver: Receiver) -> None:
    loop.run(*(a_call(receiver.url()) for _ in range(20)))

    assert loop.watched == 0
    assert loop.sender.next_timeout() is None or loop.turn() == []


def test_abort_all_names_what_was_in_flight_and_keeps_what_had_ended(
    loop: Loop, receiver: Receiver
) -> None:
    stuck = [a_call(receiver.url("/hang")) for _ in range(20)]
    refused = a_call("http://")
    for call in stuck:
        loop.sender.start(call)
    loop.until(lambda: len(receiver.requests()) == 20)
    loop.sender.start(refused)
    loop.sender.start(a_call(receiver.url(), headers=[("X", "\n")]))
    loop.selector.select(0)
    loop.sender.on_timer()

    aborted = loop.sender.abort_all()

    assert sorted(aborted) == [call.key for call in stuck]
    assert {answer.outcome for answer in loop.sender.take()} == {Outcome.PROTOCOL_ERROR}
    assert loop.sender.in_flight == 0
    assert loop.watched == 0
    assert loop.post(receiver.url("/after")).outcome is Outcome.DELIVERED


def test_close_leaves_no_descriptors(receiver: Receiver) -> None:
    before = fds()
    loop = Loop()
    loop.run(*(a_call(receiver.url()) for _ in range(10)), a_call("http://no-such-host.invalid/"))
    for _ in range(10):
        loop.sender.start(a_call(receiver.url("/hang")))
    loop.until(lambda: len(receiver.requests("/hang")) == 10)

    loop.close()

    receiver.close()  # closes the other ends and the listening socket
    assert len(fds()) <= len(before) - 1


@pytest.mark.trap("an outage of this side is charged to the consumers")
def test_a_machine_out_of_sockets_is_not_an_exception(loop: Loop, receiver: Receiver) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        answer = loop.post(receiver.url())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert answer.outcome is Outcome.INTERRUPTED
    assert answer.error == "The broker's host could not connect: Too many open files."
    assert loop.post(receiver.url()).outcome is Outcome.DELIVERED
