"""Connections of refused requests: the client reads the response, and holds nothing for long."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

import pytest

from broker_site.server import lingering as module
from broker_site.server.lingering import Lingering
from tests.support.waiting import until

RESPONSE = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n\r\n"
BODY = bytes(8 * 1024 * 1024)


class Pair(NamedTuple):
    """Both ends of a connection."""

    client: socket.socket
    server: socket.socket

    @property
    def meta(self) -> dict[str, str]:
        """The environment of a request on it, as granian passes it."""
        return {
            "REMOTE_ADDR": "127.0.0.1",
            "SERVER_PORT": str(self.server.getsockname()[1]),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "SERVER_SOFTWARE": "Granian",
            "CONTENT_LENGTH": str(len(BODY)),
        }

    def refuse(self) -> None:
        """Respond and close, as granian does when a body is not read."""
        self.server.sendall(RESPONSE)
        self.server.shutdown(socket.SHUT_WR)
        self.server.close()


class Listener:
    """Makes connections to one port."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._socket = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def connect(self) -> Pair:
        client = socket.create_connection(self._socket.getsockname(), timeout=60)
        server, _ = self._socket.accept()
        return Pair(*map(self._stack.enter_context, (closing(client), closing(server))))


@pytest.fixture
def listener() -> Iterator[Listener]:
    with ExitStack() as stack:
        yield Listener(stack)


@pytest.fixture
def lingering(listener: Listener) -> Iterator[Lingering]:
    lingering = Lingering()
    yield lingering
    for one in list(lingering._connections.values()):
        one.ends_at = one.silent_at = float("-inf")
    until(lambda: not lingering._connections, "all are closed")


@pytest.mark.trap("a refusal that its client never reads")
@pytest.mark.parametrize(
    "framing", [{}, {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}]
)
def test_the_client_sends_the_rest_and_reads_the_response(
    listener: Listener, lingering: Lingering, framing: dict[str, str]
) -> None:
    pair = listener.connect()
    lingering.keep(pair.meta | framing)
    pair.refuse()
    pair.client.sendall(BODY)
    assert pair.client.recv(1000) == RESPONSE
    assert pair.client.recv(1000) == b""
    pair.client.close()
    until(lambda: not lingering._connections, "the connection is given up with its client")


@pytest.mark.trap("a refusal that its client never reads")
@pytest.mark.parametrize(
    ("limit", "value", "sends"),
    [("MAX_BYTES", 1, True), ("TOTAL_S", 0.0, True), ("IDLE_S", 0.0, False)],
)
def test_a_client_that_never_ends_is_given_up(
    listener: Listener,
    lingering: Lingering,
    limit: str,
    value: float,
    sends: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TOTAL_S", "IDLE_S", "SHUTDOWN_S"):
        monkeypatch.setattr(module, name, 600.0)
    monkeypatch.setattr(module, limit, value)
    pair = listener.connect()
    lingering.keep(pair.meta)
    pair.refuse()

    def is_given_up() -> bool:
        with suppress(ConnectionError):
            pair.client.sendall(b"more" if sends else b"")
        return not lingering._connections

    until(is_given_up, limit)


def test_of_too_many_connections_the_oldest_is_given_up(
    listener: Listener, lingering: Lingering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(module, "IDLE_S", 600.0)
    first, second = listener.connect(), listener.connect()
    for pair in (first, second):
        lingering.keep(pair.meta)
        pair.refuse()
    until(lambda: len(lingering._connections) == 1, "one is given up")
    (kept,) = lingering._connections.values()
    assert kept.duplicate.getpeername() == second.client.getsockname()


def test_connections_that_stay_open_lose_nothing(
    listener: Listener, lingering: Lingering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of another connection from the same address was refused."""
    monkeypatch.setattr(module, "SHUTDOWN_S", 0.0)
    refused, usual = listener.connect(), listener.connect()
    usual.client.sendall(b"next request")
    lingering.keep(refused.meta)
    until(lambda: not lingering._connections, "both are released")
    assert usual.server.recv(1000) == b"next request"
    usual.server.sendall(RESPONSE)
    assert usual.client.recv(1000) == RESPONSE


@pytest.mark.parametrize(
    "other",
    [
        {"REMOTE_ADDR": "127.0.0.2"},
        {"SERVER_PORT": "1"},
        {"SERVER_PROTOCOL": "HTTP/2"},
        {"SERVER_SOFTWARE": "WSGIServer/0.2"},
        {"CONTENT_LENGTH": "0"},
    ],
    ids=str,
)
def test_only_connections_that_would_be_reset_are_kept(
    listener: Listener, lingering: Lingering, other: dict[str, str]
) -> None:
    lingering.keep(listener.connect().meta | other)
    assert not lingering._connections


def test_a_flood_of_refusals_does_not_search_for_each(
    listener: Listener, lingering: Lingering
) -> None:
    lingering._budget_s = -60.0
    lingering.keep(listener.connect().meta)
    assert not lingering._connections
