"""Senders that take their time, or vanish: what they hold, and that publishing goes on."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from delivery.runtime import children
from tests.broker import wait_until
from tests.surface.conftest import Door
from tests.surface.wire import Reply, Wire, request

pytestmark = pytest.mark.e2e
THREADS = children.web_threads()
KEEPALIVE = "02"
"""The timer of a connection that is asked now and then whether it is still there."""


def slow_form(wire: Wire) -> None:
    """A stranger's sign-in whose password never comes."""
    kind = "Content-Type: application/x-www-form-urlencoded"
    lines = ("Host: 127.0.0.1", kind, "Content-Length: 100", f"Cookie: csrftoken={'a' * 32}")
    wire.send(request("POST", "/accounts/login/", *lines) + b"login=")


@pytest.mark.trap("senders that never end")
def test_forms_that_never_end_do_not_stop_publishing(door: Door) -> None:
    """More of them than the server has threads; nobody needs a key to send them."""
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
    # They are gone, and the door is open again.
    wait_until(lambda: sign_in(door).status == 403, 5, "people are still turned away")


@pytest.mark.trap("half a form")
def test_a_form_that_breaks_off_is_refused(door: Door) -> None:
    with Wire(door.web.port) as wire:
        slow_form(wire)
        wire.send(b"m", end=True)
        answer = wire.read()
    assert answer.status == 400
    assert b"The connection broke off" in answer.body


@pytest.mark.trap("senders that never end")
def test_a_caller_that_vanished_is_noticed(door: Door) -> None:
    """In the middle of a body, too, when the server has nothing to say to it."""
    with Wire(door.web.port) as wire:
        slow_form(wire)
        wait_until(lambda: KEEPALIVE in timers(door.web.port), 5, "nobody asks the other side")


def sign_in(door: Door) -> Reply:
    """A whole form; it is no session's, which is told when it has been read."""
    return door.web.send("/accounts/login/", "Content-Length: 2", method="POST", body=b"a=")


def timers(port: int) -> list[str]:
    """What the kernel waits for on the server's side of each established connection."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return [row[5].split(":")[0] for row in own]
