"""Slow and vanished senders: which resources they hold, and that publishing goes on."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from delivery.cluster import children
from tests.e2e.hostile.conftest import SECRET, Door
from tests.support.broker import wait_until
from tests.support.wire import Reply, Wire, request

pytestmark = pytest.mark.e2e
THREADS = children.web_threads()
KEEPALIVE = "02"
"""The timer code of /proc/net/tcp for a connection with keepalive probes."""


def slow_form(wire: Wire) -> None:
    """Begin a sign-in without a key, and never send the password."""
    kind = "Content-Type: application/x-www-form-urlencoded"
    lines = ("Host: 127.0.0.1", kind, "Content-Length: 100", f"Cookie: csrftoken={'a' * 32}")
    wire.send(request("POST", "/accounts/login/", *lines) + b"login=")


@pytest.mark.trap("senders that never end")
def test_forms_that_never_end_do_not_stop_publishing(door: Door) -> None:
    """More forms than the server has threads; sending them needs no key."""
    with ExitStack() as stack:
        for _ in range(2 * THREADS):
            slow_form(stack.enter_context(Wire(door.web.port)))
        for _ in range(3):
            assert door.publish(body=b"served").status == 202
            door.stored.append(b"served")
        refused = stack.enter_context(Wire(door.web.port))
        slow_form(refused)
        answer = refused.read()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert b"send yours once more" in answer.body
    # Their connections are closed, and forms are accepted again.
    wait_until(lambda: sign_in(door).status == 403, 5, "people are still turned away")


@pytest.mark.trap("an incomplete form")
def test_a_form_that_breaks_off_is_refused(door: Door) -> None:
    with Wire(door.web.port) as wire:
        slow_form(wire)
        wire.send(b"m", end=True)
        answer = wire.read()
    assert answer.status == 400
    assert b"The connection broke off" in answer.body


@pytest.mark.trap("senders that never end")
def test_a_disconnected_caller_is_noticed(door: Door) -> None:
    """Also in the middle of a body, while the server sends nothing."""
    with Wire(door.web.port) as wire:
        slow_form(wire)
        wait_until(lambda: KEEPALIVE in timers(door.web.port), 5, "nobody asks the other side")


@pytest.mark.trap("senders that never end")
@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("/messages", "X-Kind: read as a message"),
        ("/messages/batch", "Content-Type: application/json"),
        ("/messages", "Content-Encoding: gzip"),
    ],
    ids=["message", "batch", "refused"],
)
def test_endless_bodies_of_one_key_do_not_block_others(
    door: Door, other: str, place: str, line: str
) -> None:
    """More bodies than the server has threads; the server reads a refused body to drop it."""
    with ExitStack() as stack:
        for _ in range(2 * THREADS):
            slow_body(stack.enter_context(Wire(door.web.port)), door.path + place, other, line)
        for _ in range(5):
            assert door.publish(body=b"served").status == 202
            door.stored.append(b"served")
        late = stack.enter_context(Wire(door.web.port))
        slow_body(late, f"{door.path}/messages", other)
        answer = late.read()
        assert (answer.status, answer.code) == (429, "too_many_bodies")
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
    # The slow bodies and the refused ones are gone: requests with this key are accepted again.
    wait_until(lambda: publish(door, other, b"again") == 202, 5, "the key does not recover")
    door.stored.append(b"again")


def test_many_connections_of_one_key_are_served(door: Door) -> None:
    """All at once, with complete bodies."""
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(door.web.port)) for _ in range(2 * THREADS)]
        for wire in wires:
            begin(wire, f"{door.path}/messages", door.web.key, 1024, b"x" * 1024)
        assert [wire.read().status for wire in wires] == [202] * len(wires)
    door.stored.extend([b"x" * 1024] * len(wires))


def test_slow_large_bodies_use_at_most_a_quarter_of_the_threads(door: Door) -> None:
    """All are half sent at the same time, perhaps in one process, and none is refused."""
    half = b"y" * 2**19
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(door.web.port)) for _ in range(max(1, THREADS // 4))]
        for wire in wires:
            begin(wire, f"{door.path}/messages", door.web.key, 2 * len(half), half)
        for wire in wires:
            wire.send(half)
        assert [wire.read().status for wire in wires] == [202] * len(wires)
    door.stored.extend([2 * half] * len(wires))


@pytest.fixture
def other(door: Door) -> str:
    """A producer's API key."""
    name = f"/producers/of-{door.channel}"
    door.web.call("PUT", name, 201)
    wishes = {"scopes": ["publish"], "all_channels": True}
    return str(door.web.call("POST", f"{name}/keys", 201, json=wishes)["key"])


def begin(wire: Wire, path: str, key: str, size: int, body: bytes, *lines: str) -> None:
    """Send a request with a part of its body."""
    known = ("Host: 127.0.0.1", f"Authorization: Bearer {key}", f"Content-Length: {size}")
    wire.send(request("POST", path, *known, *lines) + body)


def slow_body(wire: Wire, path: str, key: str, *lines: str) -> None:
    """Send a request without the last byte of its body."""
    begin(wire, path, key, len(SECRET) + 1, SECRET, *lines)


def publish(door: Door, key: str, body: bytes) -> int:
    """Publish a complete message; return the status."""
    with Wire(door.web.port) as wire:
        begin(wire, f"{door.path}/messages", key, len(body), body)
        return wire.read().status


def sign_in(door: Door) -> Reply:
    """Send a complete form without a session; the server refuses it after reading it."""
    return door.web.send("/accounts/login/", "Content-Length: 2", method="POST", body=b"a=")


def timers(port: int) -> list[str]:
    """Timer codes of the server's side of each established connection."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return [row[5].split(":")[0] for row in own]
