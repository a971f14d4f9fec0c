"""Receivers that answer before they have read the request: the reset loses their answer."""

import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from delivery.core.outcome import Outcome
from tests.support.certificates import certificate, server_context
from tests.support.receiver import Receiver, Reply
from tests.support.sending import Loop, a_call

LARGE = os.urandom(1 << 20)
EXPECTS = b"\r\nExpect: 100-continue\r\n"


@dataclass(slots=True)
class Hasty:
    """Answers each request when it has read its headers, and closes."""

    url: str
    heads: list[bytes] = field(default_factory=list)


@contextmanager
def hasty(status: int, *, tls: bool) -> Iterator[Hasty]:
    """Run a receiver whose kernel discards the answer, with a reset, if a body is on the way.

    That is what Linux does where the answer still waits for the acknowledgement of earlier data,
    as TLS's session tickets: TCP_NODELAY decides it, and the timing.
    """
    answer = b"HTTP/1.1 %d X\r\nRetry-After: 7\r\nConnection: close\r\n\r\n" % status

    def serve() -> None:
        with suppress(OSError):  # listening has ended
            while True:
                peer = listener.accept()[0]
                with server_context().wrap_socket(peer, server_side=True) if tls else peer as peer:
                    respond(peer)

    def respond(peer: socket.socket | ssl.SSLSocket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += peer.recv(1024)
        receiver.heads.append(head)
        if EXPECTS in head:
            peer.sendall(answer)
        else:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        receiver = Hasty(f"{'https' if tls else 'http'}://127.0.0.1:{port}/")
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield receiver
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.trap("an early answer lost with the connection")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("status", "outcome", "keeps_waiting"),
    [
        (200, Outcome.DELIVERED, True),
        (429, Outcome.THROTTLED, True),
        (410, Outcome.GONE, False),
        (413, Outcome.CLIENT_ERROR, False),
        (417, Outcome.CLIENT_ERROR, False),
    ],
)
def test_after_a_reset_a_large_body_waits_for_an_early_answer(
    tls: bool, status: int, outcome: Outcome, keeps_waiting: bool
) -> None:
    with (
        hasty(status, tls=tls) as receiver,
        closing(Loop(ca_file=str(certificate()[0]))) as loop,
    ):
        lost, answer = (loop.post(receiver.url, body=LARGE) for _ in range(2))
        loop.post(receiver.url, body=LARGE)

    assert (lost.outcome, lost.status) == (Outcome.CONNECTION_RESET, None)
    assert (answer.outcome, answer.status) == (outcome, status)
    assert answer.retry_after == (None if outcome.is_success else 7)
    # Other failures may be caused by the header itself: the next attempt does without.
    assert [EXPECTS in head for head in receiver.heads] == [False, True, keeps_waiting]


def test_who_reads_large_bodies_is_waited_for_once(loop: Loop, receiver: Receiver) -> None:
    receiver.script("/x", [Reply(reset=True), Reply()])
    small, other = a_call(receiver.url("/x")), a_call(receiver.url("/y"), body=LARGE)

    loop.post(receiver.url("/x"), body=LARGE)
    loop.run(small, other)
    answers = [loop.post(receiver.url("/x"), body=LARGE) for _ in range(2)]

    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
    large = [request for request in receiver.requests("/x") if request.body == LARGE]
    expects = [request.header("Expect") for request in large]
    assert expects == [None, "100-continue", None]
    assert [request.header("Expect") for request in receiver.requests()].count(None) == 4


def test_a_wait_that_takes_the_whole_time_is_not_repeated(loop: Loop, receiver: Receiver) -> None:
    receiver.script("/x", [Reply(reset=True), Reply(hang=True), Reply()])

    loop.post(receiver.url("/x"), body=LARGE)
    late = loop.post(receiver.url("/x"), body=LARGE, timeout_ms=200)
    loop.post(receiver.url("/x"), body=LARGE)

    assert late.outcome is Outcome.TIMEOUT
    expects = [request.header("Expect") for request in receiver.requests("/x")]
    assert expects == [None, "100-continue", None]
