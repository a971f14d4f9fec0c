"""Requests with false lengths and framing, on the real server's sockets."""

import time
from contextlib import ExitStack, suppress

import pytest

from tests.e2e.hostile.conftest import SECRET, Door
from tests.support.wire import HEADERS_MS, Wire, request

pytestmark = pytest.mark.e2e
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SECRET), SECRET)
CHUNKED_JSON = ("Content-Type: application/json", "Transfer-Encoding: chunked")
ALIVE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    ("announced", "status"),
    [
        ("99999999999", 413),
        ("1048577", 413),
        ("9" * 19, 413),
        ("9" * 30, 400),
        ("-1", 400),
        ("+27", 400),
        ("0x1b", 400),
        ("27 27", 400),
        ("27, 27", 400),
        ("27.0", 400),
        ("abc", 400),
        ("", 400),
        ("²", 400),
    ],
)
def test_invalid_content_lengths_are_refused(door: Door, announced: str, status: int) -> None:
    """The response comes before the whole body was sent."""
    answer = door.web.send(
        f"{door.path}/messages", f"Content-Length: {announced}", method="POST", body=SECRET
    )
    assert answer.status == status
    assert answer.code == ("body_too_large" if status == 413 else "")


def test_a_body_over_the_channels_own_limit(door: Door) -> None:
    assert door.put(b'{"max_body_bytes": 10}').status == 200
    answer = door.publish(body=b"x" * 11)
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert door.publish(body=b"x" * 10).status == 202
    door.stored.append(b"x" * 10)


def test_two_content_lengths_are_refused(door: Door) -> None:
    assert door.publish("Content-Length: 5").status == 400


def test_a_body_that_ends_early(door: Door) -> None:
    with Wire(door.web.port) as wire:
        wire.send(head(door, f"Content-Length: {len(SECRET) + 1}") + SECRET, end=True)
        answer = wire.read()
    assert (answer.status, answer.code) == (400, "broken_request")


@pytest.mark.parametrize(
    "body",
    [CHUNKED, CHUNKED[:-5], b"200000\r\n" + b"x" * 0x200000 + b"\r\n0\r\n\r\n", b"zz\r\n", b""],
    ids=["whole", "unfinished", "too large", "garbage", "nothing"],
)
def test_an_opaque_chunked_body_gets_411(door: Door, body: bytes) -> None:
    """The server cannot tell us whether the last chunk came; half a message is never stored."""
    with Wire(door.web.port) as wire:
        wire.send(head(door, "Transfer-Encoding: chunked"))
        # A client that reads the response early need not send the refused body.
        if len(body) < 65536:
            wire.send(body)
        answer = wire.read()
    assert (answer.status, answer.code) == (411, "length_required")


@pytest.mark.trap("half a message in chunks")
@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"0\r\nX-Sum: 1\r\n\r\n"], ids=["plain", "trailers"])
def test_a_chunked_json_body_is_stored_and_the_connection_reused(door: Door, end: bytes) -> None:
    with Wire(door.web.port) as wire:
        wire.send(head(door, *CHUNKED_JSON) + chunks(b'{"id"', b": 1}") + end + ALIVE)
        assert wire.read().status == 202
        assert wire.read().status == 200
    door.stored.append(b'{"id": 1}')


@pytest.mark.trap("half a message in chunks")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'5\r\n{"id"\r\nzz\r\n', 400),
        (b'9\r\n{"id"\r\n', 400),
        (b"", 400),
        (b"400000\r\n[" + b"1," * 0x200000, 413),
    ],
    ids=["malformed", "broken off", "nothing", "too large"],
)
def test_an_incomplete_chunked_json_body_is_refused(door: Door, body: bytes, status: int) -> None:
    with Wire(door.web.port) as wire:
        wire.send(head(door, *CHUNKED_JSON) + body, end=True)
        assert wire.read().status == status
        assert wire.is_closed()


def test_chunks_are_accepted_wherever_the_end_of_a_body_is_certain(door: Door) -> None:
    for method, path, body, status in (
        ("PUT", "", b'{"description": "x"}', 200),
        ("POST", "/messages/batch", b"[" + b" " * 100_000 + b"]", 207),
        ("PUT", "/consumers/puller", b'{"mode": "pull"}', 201),
        ("POST", "/consumers/puller/receive", b'{"max": 1}', 200),
    ):
        lines = ("Host: x", f"Authorization: Bearer {door.web.key}", *CHUNKED_JSON)
        with Wire(door.web.port) as wire:
            wire.send(request(method, door.path + path, *lines) + chunks(body) + b"0\r\n\r\n")
            assert wire.read().status == status, path


@pytest.mark.parametrize("coding", ["gzip", "identity", "xchunked", "chunked, gzip", "\x0bchunked"])
def test_unsupported_transfer_codings_are_refused(door: Door, coding: str) -> None:
    assert door.publish(f"Transfer-Encoding: {coding}").status == 400


@pytest.mark.trap("request smuggling")
@pytest.mark.parametrize("body", [CHUNKED, b"0\r\n\r\n"], ids=["chunks", "no chunks"])
def test_two_framings_do_not_smuggle_a_request(door: Door, body: bytes) -> None:
    """With both framings the server closes the connection, so that no proxy misreads the rest."""
    length = f"Content-Length: {len(body) + len(ALIVE)}"
    with Wire(door.web.port) as wire:
        wire.send(head(door, length, "Transfer-Encoding: chunked") + body + ALIVE)
        assert wire.read().status == 411
        assert wire.is_closed()


@pytest.mark.trap("request smuggling")
def test_of_two_framings_only_the_chunks_count_and_the_connection_ends(door: Door) -> None:
    """As RFC 9112 (6.3) wants it: the server drops the Content-Length before we see it."""
    body = chunks(b"{}") + b"0\r\n\r\n"
    with Wire(door.web.port) as wire:
        length = f"Content-Length: {len(body) + len(ALIVE)}"
        wire.send(head(door, length, *CHUNKED_JSON) + body + ALIVE)
        answer = wire.read()
        assert (answer.status, answer.headers["connection"]) == (202, "close")
        assert wire.is_closed()
    door.stored.append(b"{}")


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_the_body_of_a_refused_request_is_not_parsed_as_a_request(
    door: Door, pause_s: float
) -> None:
    """The server reads and drops a short body, even if it comes late."""
    with Wire(door.web.port) as wire:
        wire.send(head(door, f"Content-Length: {len(ALIVE)}", "Content-Encoding: gzip"))
        time.sleep(pause_s)
        wire.send(ALIVE)
        refused = wire.read()
        assert (refused.status, refused.headers.get("connection")) == (415, None)
        wire.send(ALIVE)
        assert wire.read().status == 200


@pytest.mark.parametrize("size", [len(ALIVE), 100_000, 2_000_000])
@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_a_refusal_that_closes_the_connection_announces_it(
    door: Door, size: int, pause_s: float
) -> None:
    """The server closes the connection after a long body, or one without a valid key."""
    length = f"Content-Length: {size}"
    stranger = request("POST", f"{door.path}/messages", "Host: x", length)
    for begun, status in (
        (stranger, 401),
        (head(door, length, "Content-Encoding: gzip"), 415),
        (request("POST", "/api/v1/nowhere", "Host: x", length), 404),
    ):
        if status == 415 and size == len(ALIVE):
            continue
        with Wire(door.web.port) as wire:
            wire.send(begun)
            time.sleep(pause_s)
            with suppress(OSError):
                wire.send(ALIVE)
            answer = wire.read()
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert wire.is_closed()


@pytest.mark.trap("a refusal that its client never reads")
@pytest.mark.parametrize(
    ("path", "authorized", "size", "status"),
    [
        ("/messages", True, 8_000_000, 413),
        ("/messages", False, 900_000, 401),
        ("/messages/batch", True, 30_000_000, 413),
        ("sqs", False, 9_000_000, 403),
        ("form", False, 9_000_000, 413),
    ],
    ids=["publish", "no key", "batch", "SQS", "form"],
)
def test_a_client_that_sends_its_whole_body_first_reads_the_refusal(
    door: Door, path: str, authorized: bool, size: int, status: int
) -> None:
    target = {"sqs": "/", "form": "/accounts/login/"}.get(path, door.path + path)
    answer = door.web.send(
        *(target, f"Content-Length: {size}", "Content-Type: application/json"),
        method="POST",
        body=bytes(size),
        authorized=authorized,
    )
    assert answer.status == status


@pytest.mark.trap("senders that never end")
def test_endless_headers_do_not_delay_other_callers(door: Door) -> None:
    """The server closes such connections after a time, and serves others meanwhile."""
    begun = time.monotonic()
    with ExitStack() as stack:
        slow = [stack.enter_context(Wire(door.web.port)) for _ in range(100)]
        for wire in slow:
            wire.send(b"POST /api/v1/channels HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        assert door.web.send("/livez").status == 200
        assert time.monotonic() - begun < HEADERS_MS / 1000
        for wire in slow:
            assert wire.is_closed()


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET /livez\r\n\r\n", b"\x00" * 64],
    ids=["TLS", "HTTP/0.9", "zeros"],
)
def test_non_http_input_is_refused(door: Door, garbage: bytes) -> None:
    with Wire(door.web.port) as wire:
        wire.send(garbage)
        assert wire.read().status == 400
        assert wire.is_closed()


def test_expect_continue_gets_a_refusal_before_the_body(door: Door) -> None:
    """``Expect: 100-continue`` saves the upload of a body that is refused."""
    answer = door.web.send(
        f"{door.path}/messages",
        "Content-Length: 99999999",
        "Expect: 100-continue",
        method="POST",
    )
    assert answer.code == "body_too_large"


def head(door: Door, *lines: str) -> bytes:
    """The head of a publish request."""
    key = f"Authorization: Bearer {door.web.key}"
    return request("POST", f"{door.path}/messages", "Host: 127.0.0.1", key, *lines)


def chunks(*data: bytes) -> bytes:
    """Chunks with this data, without the last, empty one."""
    return b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in data)
