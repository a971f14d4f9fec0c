"""What the sender puts on the wire, and how it interprets responses."""

import gzip
import os
import select
import socket
import sys
import time
import zlib
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from channels_app.database import clock
from delivery.core.outcome import Outcome
from tests.support.receiver import Receiver, Reply
from tests.support.sending import EXCERPT_BYTES, MAX_ANSWER_BYTES, Loop, a_call

# -- requests --------------------------------------------------------------------------------------


def test_the_exact_body_and_headers_arrive(loop: Loop, receiver: Receiver) -> None:
    body = bytes(range(256)) * 20
    headers = [
        ("Content-Type", "application/octet-stream"),
        ("webhook-id", "msg_1"),
        ("X-Note", "caf\xe9"),
        ("X-Empty", ""),
        ("X-Blank", " \t"),
    ]

    answer = loop.post(receiver.url("/hook?a=1&b=%20"), body=body, headers=headers)

    (request,) = receiver.wait_for(1)
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


@pytest.mark.trap("another path than the registered one")
@pytest.mark.parametrize(
    ("written", "target"),
    [
        *((path, path) for path in ("/x/../hook", "/x/%2e%2e/hook", "/./hook/.", "/..", "/%c3%A9")),
        *((path, path) for path in ("/%2E/hook//..?a=/../b", "/?to=http://a/../b", "/{a}/../[1]")),
        ("?a=%2e/../b", "/?a=%2e/../b"),
    ],
)
def test_the_exact_path_is_called(
    loop: Loop, receiver: Receiver, written: str, target: str
) -> None:
    url = receiver.url(written)
    for each in (url, url.upper(), receiver.url("/plain"), receiver.url("")):
        assert loop.post(each).outcome is Outcome.DELIVERED

    targets = [request.target for request in receiver.requests()]
    assert targets == [target, target.upper(), "/plain", "/"]


def test_an_empty_body_has_content_length_zero_and_no_extra_headers(
    loop: Loop, receiver: Receiver
) -> None:
    answer = loop.post(receiver.url(), body=b"", headers=[])

    (request,) = receiver.wait_for(1)
    assert answer.outcome is Outcome.DELIVERED
    assert {name for name, _ in request.headers} == {"Host", "Accept", "Content-Length"}
    assert request.header("Content-Length") == "0"


def test_an_idle_handle_keeps_no_large_body(loop: Loop, receiver: Receiver) -> None:
    body = os.urandom(100_000)
    references = sys.getrefcount(body)

    loop.post(receiver.url(), body=body)

    assert sys.getrefcount(body) == references


def test_a_large_body_is_sent_without_expect_continue(loop: Loop, receiver: Receiver) -> None:
    body = os.urandom(3 << 20)

    answer = loop.post(receiver.url(), body=body)

    (request,) = receiver.wait_for(1)
    assert answer.outcome is Outcome.DELIVERED
    assert request.body == body
    assert request.header("Expect") is None


@pytest.mark.trap("header injection")
def test_a_header_that_would_break_the_request_is_refused(loop: Loop, receiver: Receiver) -> None:
    headers = [
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
    ]
    for header in headers:
        loop.sender.start(a_call(receiver.url("/bad"), headers=[("X-B", "2"), header]))
        assert loop.sender.next_timeout() == 0.0
        bad, good = loop.run(a_call(receiver.url("/good")))

        assert bad.outcome is Outcome.PROTOCOL_ERROR, header
        assert bad.error.endswith(".")
        assert good.outcome is Outcome.DELIVERED, header

    assert [request.path for request in receiver.requests()] == ["/good"] * len(headers)


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


@pytest.mark.trap("a proxy from the environment")
def test_the_proxies_of_the_environment_are_ignored(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with closing(Loop()) as loop:
            assert loop.post(receiver.url()).outcome is Outcome.DELIVERED
        assert proxy.connections == 0
    assert len(receiver.requests()) == 1


# -- responses -------------------------------------------------------------------------------------


def test_the_status_code_determines_the_outcome(loop: Loop, receiver: Receiver) -> None:
    for status, outcome in (
        (200, Outcome.DELIVERED),
        (304, Outcome.REDIRECT),
        (410, Outcome.GONE),
        (429, Outcome.THROTTLED),
        (999, Outcome.PROTOCOL_ERROR),
    ):
        answer = loop.post(receiver.url(f"/status/{status}"))

        assert (answer.outcome, answer.status) == (outcome, status)
        assert answer.error == ("" if outcome.is_success else f"The endpoint answered {status}.")
        assert answer.headers.startswith(f"HTTP/1.1 {status} ")
        assert answer.remote_address == "127.0.0.1"
        assert answer.retry_after is None


def test_the_response_is_recorded(loop: Loop, receiver: Receiver) -> None:
    receiver.script("/x", [Reply(500, b"it broke", (("X-Trace", "7"),), delay_ms=60)])

    began = time.monotonic()
    answer = loop.post(receiver.url("/x"))
    took_ms = (time.monotonic() - began) * 1000

    assert answer.excerpt == b"it broke"
    assert answer.headers.endswith("\r\nX-Trace: 7\r\nContent-Length: 8\r\n\r\n")
    assert answer.connect_ms is not None
    assert answer.first_byte_ms is not None
    assert 0 <= answer.connect_ms <= answer.first_byte_ms
    assert 60 <= answer.first_byte_ms <= answer.total_ms <= took_ms + 1


def test_no_data_of_a_response_leaks_into_the_next(loop: Loop, receiver: Receiver) -> None:
    loop.post(receiver.url("/huge-headers"))
    loop.post(receiver.url("/oversized"))
    loop.post(receiver.url("/status/503?retry_after=3"))
    loop.post("http://127.0.0.9:1/")

    answer = loop.post(receiver.url("/status/500"))

    assert answer.headers == "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n"
    assert (answer.outcome, answer.excerpt) == (Outcome.SERVER_ERROR, b"ok")
    assert answer.retry_after is None


@pytest.mark.trap("a redirect that counts as delivered")
def test_a_redirect_is_not_followed(loop: Loop, receiver: Receiver) -> None:
    statuses = (301, 302, 303, 307, 308)
    location = (("Location", receiver.url("/elsewhere")),)
    receiver.script("/moved", [Reply(status, headers=location) for status in statuses])

    answers = [loop.post(receiver.url("/moved")) for _ in statuses]

    assert {answer.outcome for answer in answers} == {Outcome.REDIRECT}
    assert tuple(answer.status for answer in answers) == statuses
    assert {request.path for request in receiver.requests()} == {"/moved"}


def test_retry_after_of_a_failure_is_seconds_or_a_date_of_the_databases_clock(
    loop: Loop, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = datetime.now(UTC) - timedelta(hours=1)
    monkeypatch.setattr(clock, "now", lambda: databases)
    then = format_datetime(databases + timedelta(seconds=120), usegmt=True)
    receiver.script("/date", [Reply(503, headers=(("retry-AFTER", then),))])
    receiver.script("/fine", [Reply(200, headers=(("Retry-After", "9"),))])

    assert loop.post(receiver.url("/status/429?retry_after=7")).retry_after == 7.0
    assert loop.post(receiver.url("/date")).retry_after == pytest.approx(120, abs=1)
    assert loop.post(receiver.url("/fine")).retry_after is None


def test_interim_responses_are_ignored(loop: Loop, receiver: Receiver) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nRetry-After: 5\r\n\r\n"
    final = b"HTTP/1.1 503 Busy\r\nX-Final: 1\r\nContent-Length: 0\r\n\r\n"
    receiver.script("/early", [Reply(raw=early * 3 + final)])
    receiver.script("/only-early", [Reply(raw=early)])

    whole = loop.post(receiver.url("/early"))
    cut = loop.post(receiver.url("/only-early"))

    assert (whole.status, whole.retry_after) == (503, None)
    assert whole.headers == final.decode()
    assert (cut.outcome, cut.status) == (Outcome.CONNECTION_RESET, None)


def test_an_oversized_answer_is_cut_and_judged_by_its_status(
    loop: Loop, receiver: Receiver
) -> None:
    for status, outcome in (
        (200, Outcome.DELIVERED_OVERSIZED),
        (500, Outcome.SERVER_ERROR),
        (410, Outcome.GONE),
    ):
        receiver.script("/big", [Reply(status, b"ab" * MAX_ANSWER_BYTES * 50)])
        receiver.script("/fits", [Reply(status, b"ab" * (MAX_ANSWER_BYTES // 2))])

        big = loop.post(receiver.url("/big"))
        fits = loop.post(receiver.url("/fits"))

        assert (big.outcome, big.status) == (outcome, status)
        assert big.excerpt == fits.excerpt == b"ab" * (EXCERPT_BYTES // 2)
        assert bool(big.error) is not outcome.is_success
        assert fits.outcome is not Outcome.DELIVERED_OVERSIZED


@pytest.mark.trap("bodies without a limit")
@pytest.mark.trap("decompression bombs")
def test_a_compressed_answer_is_not_opened(loop: Loop, receiver: Receiver) -> None:
    """20 MB compress to 20 kB: only the bytes on the wire are looked at."""
    bombs = {kind: kind.compress(bytes(20_000_000))[:MAX_ANSWER_BYTES] for kind in (gzip, zlib)}
    for coding, kind in (("gzip", gzip), ("deflate", zlib), ("gzip, gzip", gzip), ("br", zlib)):
        headers = (("Content-Encoding", coding),)
        receiver.script("/bomb", [Reply(200, bombs[kind], headers)])

        answer = loop.post(receiver.url("/bomb"))

        assert answer.outcome is Outcome.DELIVERED, coding
        assert answer.excerpt == bombs[kind][:EXCERPT_BYTES]
        assert receiver.requests("/bomb")[-1].header("Accept-Encoding") is None


@pytest.mark.trap("bodies without a limit")
def test_an_endless_answer_is_cut_at_the_limit_not_at_the_timeout(loop: Loop) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = a_call(f"http://127.0.0.1:{server.getsockname()[1]}/")
        loop.sender.start(call)
        loop.until(lambda: bool(select.select([server], [], [], 0)[0]))
        with server.accept()[0] as consumer:
            # More than the limit, and then neither another byte nor an end.
            consumer.sendall(head + chunk * (MAX_ANSWER_BYTES // 10_000 + 1))
            (answer,) = loop.finish()

    assert answer.outcome is Outcome.DELIVERED_OVERSIZED
    assert answer.total_ms < call.timeout_ms


def test_huge_headers_are_bounded(loop: Loop, receiver: Receiver) -> None:
    start, line = b"HTTP/1.1 %d X\r\n", b"X-Filler: " + b"x" * 1000 + b"\r\n"
    receiver.script("/more", [Reply(raw=start % 200 + line * 2000)])
    receiver.script("/failed", [Reply(raw=start % 500 + line * 2000)])
    receiver.script("/one-line", [Reply(raw=start % 204 + line[:-2] * 1000 + b"\r\n\r\n")])
    receiver.script("/status-line", [Reply(raw=b"HTTP/1.1 200 " + b"x" * 1_000_000)])
    receiver.script("/interim", [Reply(raw=(start % 103 + line + b"\r\n") * 2000)])

    paths = ("/huge-headers", "/more", "/failed", "/one-line", "/status-line", "/interim")
    large, more, failed, one_line, status_line, interim = loop.run(
        *(a_call(receiver.url(path)) for path in paths)
    )

    assert large.outcome is Outcome.DELIVERED
    assert len(large.headers) == 2048
    assert (more.outcome, len(more.headers)) == (Outcome.DELIVERED_OVERSIZED, 2048)
    assert failed.outcome is Outcome.SERVER_ERROR
    assert (one_line.outcome, one_line.status) == (Outcome.DELIVERED_OVERSIZED, 204)
    assert (status_line.outcome, status_line.status) == (Outcome.PROTOCOL_ERROR, None)
    assert (interim.outcome, interim.status) == (Outcome.PROTOCOL_ERROR, None)
