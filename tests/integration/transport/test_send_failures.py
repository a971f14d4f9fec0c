"""Every way in which a POST can fail, over plain HTTP, TLS and HTTP/2."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from channels_app.core.networks import parse_networks
from delivery.core.outcome import Outcome
from delivery.transport import handle
from tests.support.certificates import certificate
from tests.support.http2 import GOAWAY, RST_STREAM, Http2Receiver, stream_that_ends_with
from tests.support.receiver import Receiver, Reply
from tests.support.sending import Loop, a_call


@pytest.fixture
def tls_receiver() -> Iterator[Receiver]:
    with Receiver(tls=True) as made:
        yield made


# -- failures --------------------------------------------------------------------------------------


def test_a_missing_response_times_out(loop: Loop, receiver: Receiver) -> None:
    loop.post(receiver.url())  # so that no new connection takes part of the time
    answer = loop.post(receiver.url("/hang"), timeout_ms=200)

    assert (answer.outcome, answer.status) == (Outcome.TIMEOUT, None)
    assert answer.error == "No complete response within 200 ms."
    assert answer.first_byte_ms is None
    assert answer.total_ms >= 200


def test_a_zero_timeout_does_not_wait_for_ever(loop: Loop, receiver: Receiver) -> None:
    answer = loop.post(receiver.url("/hang"), timeout_ms=0, connect_timeout_ms=0)

    assert answer.outcome in (Outcome.TIMEOUT, Outcome.CONNECT_TIMEOUT)


@pytest.mark.trap("slow responses")
def test_an_answer_that_drips_is_cut_off_at_the_total(loop: Loop, receiver: Receiver) -> None:
    call = a_call(receiver.url("/drip?ms=20"))
    loop.sender.start(call)
    (handle,) = loop.sender._busy.values()
    loop.until(lambda: handle._excerpt.startswith(b".."))

    handle.spend(call.timeout_ms)  # the time that has passed so far
    (answer,) = loop.finish()

    assert (answer.outcome, answer.status) == (Outcome.TIMEOUT, 200)
    assert answer.excerpt.startswith(b"..")
    assert answer.total_ms >= call.timeout_ms


def test_a_hanging_consumer_does_not_block_others(loop: Loop, receiver: Receiver) -> None:
    stuck = [a_call(receiver.url("/hang")) for _ in range(50)]
    quick = [a_call(receiver.url("/ok")) for _ in range(50)]

    answers = loop.run(*stuck, *quick, left=50)

    assert [answer.key for answer in answers] == [call.key for call in quick]
    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}


@pytest.mark.parametrize("limit", ["connect_timeout_ms", "timeout_ms"])
def test_a_slow_connect_times_out(loop: Loop, limit: str) -> None:
    # The kernel accepts the connection, but no TLS handshake follows.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = loop.post(f"https://127.0.0.1:{silent.getsockname()[1]}/", **{limit: 200})

    assert answer.outcome is Outcome.CONNECT_TIMEOUT
    assert answer.error == "No connection within 200 ms."
    assert answer.total_ms >= 200


def test_a_refused_connection_is_an_outcome(loop: Loop) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        answer = loop.post(f"http://127.0.0.1:{bound.getsockname()[1]}/")

    assert answer.outcome is Outcome.CONNECTION_REFUSED
    assert answer.error == "No server listens at the address: Connection refused."


@pytest.mark.trap("an outage of this side is charged to the consumers")
@pytest.mark.parametrize(
    ("has_route", "outcome", "sentence"),
    [
        (False, Outcome.INTERRUPTED, "The broker's host could not connect"),
        (True, Outcome.CONNECTION_ERROR, "The connection failed"),
    ],
)
def test_only_without_any_route_is_the_network_this_hosts(
    monkeypatch: pytest.MonkeyPatch, has_route: bool, outcome: Outcome, sentence: str
) -> None:
    """TCP to the broadcast address fails as it does on a host that has no network."""
    monkeypatch.setattr(handle, "_has_route", lambda *_: has_route)
    with closing(Loop(allowed=parse_networks("255.255.255.255"))) as loop:
        answer = loop.post("http://255.255.255.255/")

    assert (answer.outcome, answer.error) == (outcome, f"{sentence}: Network is unreachable.")


BROKEN: list[tuple[Reply, Outcome, int | None]] = [
    (Reply(reset=True), Outcome.CONNECTION_RESET, None),
    (Reply(raw=b""), Outcome.CONNECTION_RESET, None),
    (Reply(raw=b"HTTP/1.1 200 O"), Outcome.CONNECTION_RESET, None),
    (Reply(raw=b"\x00\x01\x02 nonsense\r\n\r\n"), Outcome.PROTOCOL_ERROR, None),
    (Reply(raw=b"220 mail.example ESMTP\r\n"), Outcome.PROTOCOL_ERROR, None),
    (Reply(raw=b"HTTP/9.9 200 OK\r\n\r\n"), Outcome.PROTOCOL_ERROR, None),
    (Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: few\r\n\r\n"), Outcome.PROTOCOL_ERROR, 200),
]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_broken_or_non_http_response_is_an_outcome(tls: bool) -> None:
    with Receiver(tls=tls) as consumer, closing(Loop(ca_file=consumer.ca_file)) as loop:
        for reply, outcome, status in BROKEN:
            consumer.script("/x", [reply])
            answer = loop.post(consumer.url("/x"))

            assert (answer.outcome, answer.status) == (outcome, status), reply
            assert answer.error.endswith(".")


BAD_ENDS = {
    "a short body": b"Content-Length: 9\r\n\r\nabc",
    "no last chunk": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "a bad chunk": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
    "a bad trailer": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n",
    "no end of the stream": b"\r\nabc",
}


@pytest.mark.trap("a success lost with its response body")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("end", BAD_ENDS.values(), ids=BAD_ENDS)
def test_complete_headers_decide_whatever_becomes_of_the_body(tls: bool, end: bytes) -> None:
    # The receiver closes without TLS's close_notify. Over plain HTTP that is how a stream ends.
    is_bad = tls or b"\r\n\r\n" in end
    with Receiver(tls=tls) as consumer, closing(Loop(ca_file=consumer.ca_file)) as loop:
        for status, outcome, sentence in (
            (200, Outcome.DELIVERED, ""),
            (410, Outcome.GONE, "The endpoint answered 410. "),
            (429, Outcome.THROTTLED, "The endpoint answered 429. "),
            (500, Outcome.SERVER_ERROR, "The endpoint answered 500. "),
        ):
            head = b"HTTP/1.1 %d X\r\nRetry-After: 7\r\n" % status
            consumer.script("/x", [Reply(raw=head + end)])
            answer = loop.post(consumer.url("/x"))

            assert (answer.outcome, answer.status) == (outcome, status)
            assert answer.excerpt == b"abc"
            assert answer.retry_after == (None if outcome.is_success else 7)
            if is_bad:
                note = f"{sentence}The exchange broke off after the response headers: "
                assert answer.error.startswith(note)


def test_incomplete_headers_decide_nothing() -> None:
    with Receiver(tls=True) as consumer, closing(Loop(ca_file=consumer.ca_file)) as loop:
        consumer.script("/x", [Reply(raw=b"HTTP/1.1 200 OK\r\nX-Trace: 7\r\n")])
        answer = loop.post(consumer.url("/x"))

    assert (answer.outcome, answer.status) == (Outcome.CONNECTION_RESET, 200)


@pytest.mark.trap("a success lost with its response body")
@pytest.mark.parametrize("ending", [RST_STREAM, GOAWAY, b""], ids=["reset", "goaway", "closed"])
def test_complete_http2_headers_decide_whatever_follows(ending: bytes) -> None:
    with stream_that_ends_with(ending) as url, closing(Loop(ca_file=str(certificate()[0]))) as loop:
        answer = loop.post(url)

    assert answer.headers.startswith("HTTP/2 200")
    assert (answer.outcome, answer.status) == (Outcome.DELIVERED, 200)
    assert answer.error.startswith("The exchange broke off after the response headers: ")


# -- TLS and HTTP/2 --------------------------------------------------------------------------------


def test_an_untrusted_certificate_is_refused(loop: Loop, tls_receiver: Receiver) -> None:
    answer = loop.post(tls_receiver.url())

    assert answer.outcome is Outcome.TLS_ERROR
    assert "self-signed" in answer.error
    assert tls_receiver.requests() == []


def test_a_certificate_of_the_ca_file_is_accepted(tls_receiver: Receiver) -> None:
    with closing(Loop(ca_file=tls_receiver.ca_file)) as loop:
        good, again = loop.post(tls_receiver.url()), loop.post(tls_receiver.url())
        stranger = loop.post(tls_receiver.url(host="other.localhost"))

    assert (good.outcome, again.outcome) == (Outcome.DELIVERED, Outcome.DELIVERED)
    assert (good.connect_ms is None, again.connect_ms is None) == (False, True)
    assert stranger.outcome is Outcome.TLS_ERROR
    assert len(tls_receiver.requests()) == 2


def test_plain_http_on_a_tls_port_is_an_outcome(loop: Loop, tls_receiver: Receiver) -> None:
    answer = loop.post(tls_receiver.url().replace("https:", "http:"))

    assert answer.outcome in (Outcome.CONNECTION_RESET, Outcome.PROTOCOL_ERROR)


def test_http2_carries_many_calls_on_one_connection() -> None:
    with Http2Receiver() as consumer, closing(Loop(ca_file=consumer.ca_file)) as loop:
        bodies = [os.urandom(500) for _ in range(60)]
        calls = [a_call(consumer.url("/x"), body=body) for body in bodies]
        answers = loop.run(*calls[:30], a_call(consumer.url("/big")), *calls[30:])
        empty = loop.post(consumer.url("/x"), body=b"")
        exact = loop.post(consumer.url("/x/../big"))

    by_key = {answer.key: answer for answer in answers}
    assert all(answer.headers.startswith("HTTP/2 200 ") for answer in answers)
    assert [by_key[call.key].excerpt for call in calls] == [body[::-1] for body in bodies]
    assert {by_key[call.key].outcome for call in calls} == {Outcome.DELIVERED}
    assert [answer.outcome for answer in answers].count(Outcome.DELIVERED_OVERSIZED) == 1
    assert sum(answer.connect_ms is not None for answer in [*answers, empty]) == 1
    assert (empty.outcome, empty.excerpt) == (Outcome.DELIVERED, b"")
    assert exact.outcome is Outcome.DELIVERED


def test_a_call_without_http2_does_not_share_its_connection() -> None:
    with Http2Receiver() as consumer, closing(Loop(ca_file=consumer.ca_file)) as loop:
        versions = [
            loop.run(a_call(consumer.url("/x"), may_use_http2=may_use_http2))[0].headers[:8]
            for may_use_http2 in (True, False, True, False)
        ]
        many = [a_call(consumer.url("/x"), may_use_http2=False) for _ in range(5)]
        answers = loop.run(*many)

    assert versions == ["HTTP/2 2", "HTTP/1.1", "HTTP/2 2", "HTTP/1.1"]
    assert {answer.headers[:8] for answer in answers} == {"HTTP/1.1"}
    assert sum(answer.connect_ms is not None for answer in answers) == 4


def test_a_tls_consumer_without_http2_gets_as_many_connections_as_calls(
    tls_receiver: Receiver,
) -> None:
    # The calls wait for the first handshake, which shows that connections cannot be shared, but
    # not for a response.
    with closing(Loop(ca_file=tls_receiver.ca_file)) as loop:
        for _ in range(64):
            loop.sender.start(a_call(tls_receiver.url("/hang")))
        loop.until(lambda: len(tls_receiver.requests()) == 64)

    assert tls_receiver.max_concurrency == 64
