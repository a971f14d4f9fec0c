"""The sender against real sockets: every way a POST can end, and what it must never do."""

import os
import resource
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count
from typing import Any

import pytest

from channels_app.rules.addresses import Networks, parse_networks
from delivery.rules.outcome import Outcome
from delivery.steps.send import Answer, Call, Sender
from tests.http2 import Http2Receiver
from tests.receiver import Receiver, Reply

LOOPBACK = parse_networks("127.0.0.0/8, ::1")
EXCERPT_BYTES = 1000
MAX_ANSWER_BYTES = 20_000
_PATIENCE_S = 10.0
_KEYS = count(1)


class Loop:
    """A sender with a selector of its own, and the loop that a pump would run."""

    def __init__(self, *, allowed: Networks = LOOPBACK, ca_file: str | None = None) -> None:
        self.selector = selectors.DefaultSelector()
        self.sender = Sender(
            selector=self.selector,
            allowed=allowed,
            excerpt_bytes=EXCERPT_BYTES,
            max_answer_bytes=MAX_ANSWER_BYTES,
            ca_file=ca_file,
        )

    def turn(self) -> list[Answer]:
        """One round: wait for a moment at most, move on, collect."""
        patience = self.sender.next_timeout()
        for key, mask in self.selector.select(0.1 if patience is None else min(patience, 0.1)):
            key.data(key.fd, mask)
        self.sender.on_timer()
        return self.sender.take()

    def run(self, *calls: Call) -> list[Answer]:
        """The answers to these calls, all started at once, in the order of the calls."""
        for call in calls:
            self.sender.start(call)
        return self.finish()

    def finish(self) -> list[Answer]:
        """The answers to whatever is in flight, by key."""
        answers: list[Answer] = []
        deadline = time.monotonic() + _PATIENCE_S
        while self.sender.in_flight:
            assert time.monotonic() < deadline, f"{self.sender.in_flight} calls have no answer"
            answers += self.turn()
        return sorted(answers, key=lambda answer: answer.key)

    def until(self, arrived: Callable[[], bool]) -> None:
        """Turn until something has happened outside."""
        deadline = time.monotonic() + _PATIENCE_S
        while not arrived():
            assert time.monotonic() < deadline
            assert self.turn() == []

    def post(self, url: str, **changes: Any) -> Answer:
        """The answer to one call."""
        (answer,) = self.run(a_call(url, **changes))
        return answer

    def close(self) -> None:
        self.sender.close()
        self.selector.close()


def a_call(url: str, **changes: Any) -> Call:
    call = Call(
        key=next(_KEYS),
        url=url,
        headers=[("Content-Type", "application/json"), ("User-Agent", "Hookstation/test")],
        body=b'{"n": 1}',
        timeout_ms=8000,
        connect_timeout_ms=4000,
        group=1,
    )
    return call._replace(**changes)


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made


@pytest.fixture
def consumer() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def tls_consumer() -> Iterator[Receiver]:
    with Receiver(tls=True) as made:
        yield made


def fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


# -- what goes out -------------------------------------------------------------------------------


def test_the_exact_body_and_headers_arrive(loop: Loop, consumer: Receiver) -> None:
    body = bytes(range(256)) * 20
    headers = [
        ("Content-Type", "application/octet-stream"),
        ("webhook-id", "msg_1"),
        ("X-Note", "caf\xe9"),
        ("X-Empty", ""),
        ("X-Blank", " \t"),
    ]

    answer = loop.post(consumer.url("/hook?a=1&b=%20"), body=body, headers=headers)

    (request,) = consumer.wait_for(1)
    assert answer.outcome is Outcome.DELIVERED
    assert (request.method, request.target) == ("POST", "/hook?a=1&b=%20")
    assert request.body == body
    kept = [(name, value) for name, value in request.headers if name not in ("Host", "Accept")]
    assert kept == [
        ("Content-Type", "application/octet-stream"),
        ("webhook-id", "msg_1"),
        ("X-Note", "caf\xe9"),
        ("X-Empty", ""),
        ("X-Blank", ""),
        ("Content-Length", str(len(body))),
    ]


def test_an_empty_body_says_so_and_no_header_is_made_up(loop: Loop, consumer: Receiver) -> None:
    answer = loop.post(consumer.url(), body=b"", headers=[])

    (request,) = consumer.wait_for(1)
    assert answer.outcome is Outcome.DELIVERED
    assert {name for name, _ in request.headers} == {"Host", "Accept", "Content-Length"}
    assert request.header("Content-Length") == "0"


def test_a_large_body_goes_out_without_asking_first(loop: Loop, consumer: Receiver) -> None:
    body = os.urandom(3 << 20)

    answer = loop.post(consumer.url(), body=body)

    (request,) = consumer.wait_for(1)
    assert answer.outcome is Outcome.DELIVERED
    assert request.body == body
    assert request.header("Expect") is None


@pytest.mark.parametrize(
    "header",
    [
        ("X-A", "1\r\nX-Injected: 1"),
        ("X-A", "1\nX-Injected: 1"),
        ("X-A", "1\rX-Injected: 1"),
        ("X-A", "1\0"),
        ("X-A\r\nX-Injected", "1"),
        ("X-A: 1\nX-Injected", "1"),
        ("", "1"),
        ("X A", "1"),
        ("X-A", "\u20ac"),
        ("Transfer-Encoding", "chunked"),
        ("content-length", "3"),
        ("Expect", "100-continue"),
    ],
)
def test_a_header_that_would_break_the_request_is_refused(
    loop: Loop, consumer: Receiver, header: tuple[str, str]
) -> None:
    bad, good = loop.run(
        a_call(consumer.url("/bad"), headers=[("X-B", "2"), header]), a_call(consumer.url("/good"))
    )

    assert bad.outcome is Outcome.PROTOCOL_ERROR
    assert bad.error.endswith(".")
    assert good.outcome is Outcome.DELIVERED
    assert [request.path for request in consumer.requests()] == ["/good"]


@pytest.mark.parametrize(
    ("url", "outcome"),
    [
        ("", Outcome.PROTOCOL_ERROR),
        ("http://", Outcome.PROTOCOL_ERROR),
        ("http://127.0.0.1:99999/", Outcome.PROTOCOL_ERROR),
        ("http://127.0.0.1:1/\0", Outcome.PROTOCOL_ERROR),
        ("http://127.0.0.1:1/a b", Outcome.PROTOCOL_ERROR),
        ("http://b\xfccher.example/", Outcome.PROTOCOL_ERROR),
        ("file:///etc/passwd", Outcome.BLOCKED_ADDRESS),
        ("gopher://127.0.0.1:1/x", Outcome.BLOCKED_ADDRESS),
    ],
)
def test_an_address_that_cannot_be_called_is_an_outcome(
    loop: Loop, url: str, outcome: Outcome
) -> None:
    answer = loop.post(url)

    assert answer.outcome is outcome
    assert answer.error.endswith(".")
    assert (answer.status, answer.excerpt) == (None, b"")


def test_the_proxies_of_the_environment_are_ignored(
    consumer: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with closing(Loop()) as loop:
            assert loop.post(consumer.url()).outcome is Outcome.DELIVERED
        assert proxy.connections == 0
    assert len(consumer.requests()) == 1


# -- what comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.DELIVERED),
        (201, Outcome.DELIVERED),
        (202, Outcome.DELIVERED),
        (204, Outcome.DELIVERED),
        (299, Outcome.DELIVERED),
        (301, Outcome.REDIRECT),
        (304, Outcome.REDIRECT),
        (400, Outcome.CLIENT_ERROR),
        (404, Outcome.NOT_FOUND),
        (410, Outcome.GONE),
        (429, Outcome.THROTTLED),
        (500, Outcome.SERVER_ERROR),
        (503, Outcome.UNAVAILABLE),
        (999, Outcome.PROTOCOL_ERROR),
    ],
)
def test_the_status_decides(loop: Loop, consumer: Receiver, status: int, outcome: Outcome) -> None:
    answer = loop.post(consumer.url(f"/status/{status}"))

    assert (answer.outcome, answer.status) == (outcome, status)
    assert answer.error == ("" if outcome.is_success else f"The endpoint answered {status}.")
    assert answer.headers.startswith(f"HTTP/1.1 {status} ")
    assert answer.remote_address == "127.0.0.1"
    assert answer.retry_after is None


def test_an_answer_is_described(loop: Loop, consumer: Receiver) -> None:
    consumer.script("/x", [Reply(500, b"it broke", (("X-Trace", "7"),), delay_ms=60)])

    answer = loop.post(consumer.url("/x"))

    assert answer.excerpt == b"it broke"
    assert answer.headers.endswith("\r\nX-Trace: 7\r\nContent-Length: 8\r\n\r\n")
    assert answer.connect_ms is not None
    assert answer.first_byte_ms is not None
    assert 0 <= answer.connect_ms < 50
    assert 60 <= answer.first_byte_ms <= answer.total_ms < 1000


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(loop: Loop, consumer: Receiver, status: int) -> None:
    location = (("Location", consumer.url("/elsewhere")),)
    consumer.script("/moved", [Reply(status, headers=location)])

    answer = loop.post(consumer.url("/moved"))

    assert (answer.outcome, answer.status) == (Outcome.REDIRECT, status)
    assert [request.path for request in consumer.requests()] == ["/moved"]


def test_retry_after_in_seconds_and_as_a_date(loop: Loop, consumer: Receiver) -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=120), usegmt=True)
    consumer.script("/date", [Reply(503, headers=(("retry-AFTER", then),))])
    consumer.script("/fine", [Reply(200, headers=(("Retry-After", "9"),))])

    seconds = loop.post(consumer.url("/status/429?retry_after=7"))
    date = loop.post(consumer.url("/date"))
    fine = loop.post(consumer.url("/fine"))

    assert (seconds.outcome, seconds.retry_after) == (Outcome.THROTTLED, 7.0)
    assert date.retry_after == pytest.approx(120, abs=3)
    assert fine.retry_after is None


def test_interim_answers_leave_no_trace(loop: Loop, consumer: Receiver) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nRetry-After: 5\r\n\r\n"
    final = b"HTTP/1.1 503 Busy\r\nX-Final: 1\r\nContent-Length: 0\r\n\r\n"
    consumer.script("/early", [Reply(raw=early * 3 + final)])
    consumer.script("/only-early", [Reply(raw=early)])

    whole = loop.post(consumer.url("/early"))
    cut = loop.post(consumer.url("/only-early"))

    assert (whole.status, whole.retry_after) == (503, None)
    assert whole.headers == final.decode()
    assert (cut.outcome, cut.status) == (Outcome.CONNECTION_RESET, None)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, Outcome.DELIVERED_OVERSIZED), (500, Outcome.SERVER_ERROR), (410, Outcome.GONE)],
)
def test_an_oversized_answer_is_cut_and_judged_by_its_status(
    loop: Loop, consumer: Receiver, status: int, outcome: Outcome
) -> None:
    consumer.script("/big", [Reply(status, b"ab" * MAX_ANSWER_BYTES * 50)])
    consumer.script("/fits", [Reply(status, b"ab" * (MAX_ANSWER_BYTES // 2))])

    big = loop.post(consumer.url("/big"))
    fits = loop.post(consumer.url("/fits"))

    assert (big.outcome, big.status) == (outcome, status)
    assert big.excerpt == fits.excerpt == b"ab" * (EXCERPT_BYTES // 2)
    assert bool(big.error) is not outcome.is_success
    assert fits.outcome is not Outcome.DELIVERED_OVERSIZED


def test_an_endless_answer_is_cut_at_the_limit_not_at_the_timeout(
    loop: Loop, consumer: Receiver
) -> None:
    chunks = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    consumer.script("/endless", [Reply(raw=head + chunks * 1000)])

    answer = loop.post(consumer.url("/endless"))

    assert answer.outcome is Outcome.DELIVERED_OVERSIZED
    assert answer.total_ms < 4000


def test_huge_headers_are_bounded(loop: Loop, consumer: Receiver) -> None:
    start, line = b"HTTP/1.1 %d X\r\n", b"X-Filler: " + b"x" * 1000 + b"\r\n"
    consumer.script("/more", [Reply(raw=start % 200 + line * 2000)])
    consumer.script("/failed", [Reply(raw=start % 500 + line * 2000)])
    consumer.script("/one-line", [Reply(raw=start % 204 + line[:-2] * 1000 + b"\r\n\r\n")])
    consumer.script("/status-line", [Reply(raw=b"HTTP/1.1 200 " + b"x" * 1_000_000)])
    consumer.script("/interim", [Reply(raw=(start % 103 + line + b"\r\n") * 2000)])

    large, more, failed, one_line, status_line, interim = loop.run(
        *(
            a_call(consumer.url(path))
            for path in (
                "/huge-headers",
                "/more",
                "/failed",
                "/one-line",
                "/status-line",
                "/interim",
            )
        )
    )

    assert large.outcome is Outcome.DELIVERED
    assert len(large.headers) == 2048
    assert (more.outcome, len(more.headers)) == (Outcome.DELIVERED_OVERSIZED, 2048)
    assert failed.outcome is Outcome.SERVER_ERROR
    assert (one_line.outcome, one_line.status) == (Outcome.DELIVERED_OVERSIZED, 204)
    assert (status_line.outcome, status_line.status) == (Outcome.PROTOCOL_ERROR, None)
    assert (interim.outcome, interim.status) == (Outcome.PROTOCOL_ERROR, None)


# -- what goes wrong -----------------------------------------------------------------------------


def test_no_answer_in_time(loop: Loop, consumer: Receiver) -> None:
    answer = loop.post(consumer.url("/hang"), timeout_ms=200)

    assert (answer.outcome, answer.status) == (Outcome.TIMEOUT, None)
    assert answer.error == "No complete answer within 200 ms."
    assert answer.first_byte_ms is None
    assert 200 <= answer.total_ms < 1000


def test_an_answer_that_drips_is_cut_off_at_the_total(loop: Loop, consumer: Receiver) -> None:
    answer = loop.post(consumer.url("/drip?ms=20"), timeout_ms=300)

    assert (answer.outcome, answer.status) == (Outcome.TIMEOUT, 200)
    assert answer.excerpt.startswith(b"..")
    assert 300 <= answer.total_ms < 1000


def test_a_hanging_consumer_holds_up_nobody(loop: Loop, consumer: Receiver) -> None:
    stuck = [a_call(consumer.url("/hang"), timeout_ms=900) for _ in range(50)]
    quick = [a_call(consumer.url("/ok")) for _ in range(50)]

    answers = loop.run(*stuck, *quick)

    assert {answer.outcome for answer in answers[:50]} == {Outcome.TIMEOUT}
    assert {answer.outcome for answer in answers[50:]} == {Outcome.DELIVERED}
    assert max(answer.total_ms for answer in answers[50:]) < 800


@pytest.mark.parametrize("limit", ["connect_timeout_ms", "timeout_ms"])
def test_no_connection_in_time(loop: Loop, limit: str) -> None:
    # The kernel takes the connection, but nobody ever speaks TLS on it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = loop.post(f"https://127.0.0.1:{silent.getsockname()[1]}/", **{limit: 200})

    assert answer.outcome is Outcome.CONNECT_TIMEOUT
    assert answer.error == "No connection within 200 ms."
    assert 200 <= answer.total_ms < 1000


def test_nobody_listens(loop: Loop) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        answer = loop.post(f"http://127.0.0.1:{bound.getsockname()[1]}/")

    assert answer.outcome is Outcome.CONNECTION_REFUSED
    assert answer.error == "Nobody listens at the address: Connection refused."


def test_a_name_without_an_address(loop: Loop) -> None:
    answer = loop.post("http://no-such-host.invalid/")

    assert answer.outcome is Outcome.DNS_ERROR
    assert "no-such-host.invalid" in answer.error


@pytest.mark.parametrize(
    ("reply", "outcome", "status"),
    [
        (Reply(reset=True), Outcome.CONNECTION_RESET, None),
        (Reply(raw=b""), Outcome.CONNECTION_RESET, None),
        (Reply(raw=b"HTTP/1.1 200 O"), Outcome.CONNECTION_RESET, None),
        (
            Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
            Outcome.CONNECTION_RESET,
            200,
        ),
        (Reply(raw=b"\x00\x01\x02 nonsense\r\n\r\n"), Outcome.PROTOCOL_ERROR, None),
        (Reply(raw=b"220 mail.example ESMTP\r\n"), Outcome.PROTOCOL_ERROR, None),
        (Reply(raw=b"HTTP/9.9 200 OK\r\n\r\n"), Outcome.PROTOCOL_ERROR, None),
        (
            Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: few\r\n\r\n"),
            Outcome.PROTOCOL_ERROR,
            200,
        ),
        (
            Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            Outcome.PROTOCOL_ERROR,
            200,
        ),
    ],
    ids=lambda value: None if isinstance(value, int) else str(getattr(value, "raw", value))[:40],
)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_an_answer_that_breaks_or_is_no_http(
    reply: Reply, outcome: Outcome, status: int | None, tls: bool
) -> None:
    with Receiver(tls=tls) as consumer, closing(Loop(ca_file=consumer.ca_file)) as loop:
        consumer.script("/x", [reply])
        answer = loop.post(consumer.url("/x"))

    assert (answer.outcome, answer.status) == (outcome, status)
    assert answer.error.endswith(".")


# -- TLS and HTTP/2 ------------------------------------------------------------------------------


def test_a_certificate_that_nobody_vouches_for(loop: Loop, tls_consumer: Receiver) -> None:
    answer = loop.post(tls_consumer.url())

    assert answer.outcome is Outcome.TLS_ERROR
    assert "self-signed" in answer.error
    assert tls_consumer.requests() == []


def test_a_certificate_that_the_operator_trusts(tls_consumer: Receiver) -> None:
    with closing(Loop(ca_file=tls_consumer.ca_file)) as loop:
        good, again = loop.post(tls_consumer.url()), loop.post(tls_consumer.url())
        stranger = loop.post(tls_consumer.url(host="other.localhost"))

    assert (good.outcome, again.outcome) == (Outcome.DELIVERED, Outcome.DELIVERED)
    assert (good.connect_ms is None, again.connect_ms is None) == (False, True)
    assert stranger.outcome is Outcome.TLS_ERROR
    assert len(tls_consumer.requests()) == 2


def test_plain_http_where_tls_is_spoken(loop: Loop, tls_consumer: Receiver) -> None:
    answer = loop.post(tls_consumer.url().replace("https:", "http:"))

    assert answer.outcome in (Outcome.CONNECTION_RESET, Outcome.PROTOCOL_ERROR)


def test_http2_carries_many_calls_on_one_connection() -> None:
    with Http2Receiver() as consumer, closing(Loop(ca_file=consumer.ca_file)) as loop:
        bodies = [os.urandom(500) for _ in range(60)]
        calls = [a_call(consumer.url("/x"), body=body) for body in bodies]
        answers = loop.run(*calls[:30], a_call(consumer.url("/big")), *calls[30:])
        empty = loop.post(consumer.url("/x"), body=b"")

    by_key = {answer.key: answer for answer in answers}
    assert all(answer.headers.startswith("HTTP/2 200 ") for answer in answers)
    assert [by_key[call.key].excerpt for call in calls] == [body[::-1] for body in bodies]
    assert {by_key[call.key].outcome for call in calls} == {Outcome.DELIVERED}
    assert [answer.outcome for answer in answers].count(Outcome.DELIVERED_OVERSIZED) == 1
    assert sum(answer.connect_ms is not None for answer in [*answers, empty]) == 1
    assert (empty.outcome, empty.excerpt) == (Outcome.DELIVERED, b"")


# -- the guard -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "LOCALHOST.",
        "inner.localhost",
    ],
)
@pytest.mark.parametrize("listener", ["127.0.0.1", "::1"])
def test_an_inner_address_is_never_connected_to(host: str, listener: str) -> None:
    with Receiver(host=listener) as consumer, closing(Loop(allowed=())) as loop:
        answer = loop.post(consumer.url(host=host))
        assert consumer.connections == 0

    assert answer.outcome is Outcome.BLOCKED_ADDRESS
    assert answer.remote_address in ("127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1")
    assert answer.error == f"The address {answer.remote_address} may not be called."


def test_of_a_names_addresses_only_the_allowed_ones_are_tried() -> None:
    with Receiver() as consumer, closing(Loop(allowed=parse_networks("127.0.0.1"))) as loop:
        answer = loop.post(consumer.url(host="both.localhost"))

    # The name also leads to ::1, which is not allowed here.
    assert (answer.outcome, answer.remote_address) == (Outcome.DELIVERED, "127.0.0.1")


def test_the_guard_judges_each_sender_by_its_own_networks() -> None:
    with Receiver(host="::1") as consumer:
        with closing(Loop(allowed=parse_networks("127.0.0.0/8"))) as loop:
            closed = loop.post(consumer.url())
        with closing(Loop(allowed=parse_networks("::1"))) as loop:
            opened = loop.post(consumer.url())

    assert (closed.outcome, closed.remote_address) == (Outcome.BLOCKED_ADDRESS, "::1")
    assert (opened.outcome, opened.remote_address) == (Outcome.DELIVERED, "::1")


# -- many, and the end ---------------------------------------------------------------------------


def test_one_connection_for_many_posts(loop: Loop, consumer: Receiver) -> None:
    answers = [loop.post(consumer.url(f"/{n}")) for n in range(100)]

    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
    assert consumer.connections == 1
    assert answers[0].connect_ms is not None
    assert {answer.connect_ms for answer in answers[1:]} == {None}


def test_a_kept_connection_that_the_consumer_closed_is_replaced(
    loop: Loop, consumer: Receiver
) -> None:
    # The answer promises to keep the connection, and the receiver closes it all the same.
    consumer.script("/x", [Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")])

    answers = [loop.post(consumer.url("/x")) for _ in range(5)]

    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
    assert len(consumer.requests()) == 5


def test_three_hundred_at_a_time(loop: Loop, consumer: Receiver) -> None:
    calls = [a_call(consumer.url("/ok"), body=b"%d" % n) for n in range(300)]
    answers = loop.run(*calls)
    for _ in range(300):
        loop.sender.start(a_call(consumer.url("/hang")))
    loop.until(lambda: len(consumer.requests("/hang")) == 300)

    assert [answer.key for answer in answers] == [call.key for call in calls]
    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
    assert sorted(int(request.body) for request in consumer.requests("/ok")) == list(range(300))
    assert loop.sender.in_flight == 300
    assert consumer.max_concurrency == 300


def test_idle_connections_are_not_watched(loop: Loop, consumer: Receiver) -> None:
    loop.run(*(a_call(consumer.url()) for _ in range(20)))

    assert dict(loop.selector.get_map()) == {}
    assert loop.sender.next_timeout() is None or loop.turn() == []


def test_abort_all_names_what_was_in_flight_and_keeps_what_had_ended(
    loop: Loop, consumer: Receiver
) -> None:
    stuck = [a_call(consumer.url("/hang")) for _ in range(20)]
    refused = a_call("http://")
    for call in stuck:
        loop.sender.start(call)
    loop.until(lambda: len(consumer.requests()) == 20)
    loop.sender.start(refused)
    loop.sender.start(a_call(consumer.url(), headers=[("X", "\n")]))
    loop.selector.select(0)
    loop.sender.on_timer()

    aborted = loop.sender.abort_all()

    assert sorted(aborted) == [call.key for call in stuck]
    assert {answer.outcome for answer in loop.sender.take()} == {Outcome.PROTOCOL_ERROR}
    assert loop.sender.in_flight == 0
    assert dict(loop.selector.get_map()) == {}
    assert loop.post(consumer.url("/after")).outcome is Outcome.DELIVERED


def test_close_leaves_no_descriptors(consumer: Receiver) -> None:
    before = fds()
    loop = Loop()
    loop.run(*(a_call(consumer.url()) for _ in range(10)), a_call("http://no-such-host.invalid/"))
    for _ in range(10):
        loop.sender.start(a_call(consumer.url("/hang")))
    loop.until(lambda: len(consumer.requests("/hang")) == 10)

    loop.close()

    consumer.close()  # the other ends, and the listening socket
    assert len(fds()) <= len(before) - 1


def test_a_machine_out_of_sockets_is_not_an_exception(loop: Loop, consumer: Receiver) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        answer = loop.post(consumer.url())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert answer.outcome is Outcome.CONNECTION_ERROR
    assert "Too many open files" in answer.error
    assert loop.post(consumer.url()).outcome is Outcome.DELIVERED
