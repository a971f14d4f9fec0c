"""How the real server handles requests that no well-behaved client sends."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from tests.support.broker import Broker, running

pytestmark = pytest.mark.e2e
PATH = "/api/v1/channels/orders/messages"


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("wire")
    # On MariaDB the broker's database is created over this process's connection.
    with django_db_blocker.unblock(), running(folder) as started:
        started.call("PUT", "/channels/orders", 201)
        yield started


@pytest.fixture(autouse=True)
def _nothing_is_stored(broker: Broker) -> Iterator[None]:
    yield
    assert broker.call("GET", "/channels/orders/messages", 200)["items"] == []


def send(broker: Broker, head: str, body: bytes = b"", *, half: bool = False) -> tuple[str, bytes]:
    """Return the status line and the rest; ``half`` closes our sending side after the body."""
    authorization = broker.http.headers["Authorization"]
    request = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization!s}\r\n{head}\r\n"
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as connection:
        connection.sendall(request.encode() + body)
        if half:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while b"\r\n\r\n" not in answer and (more := connection.recv(65536)):
            answer += more
    status, _, rest = answer.partition(b"\r\n")
    return status.decode(), rest


def test_a_body_cut_short_is_never_stored(broker: Broker) -> None:
    status, _ = send(broker, "Content-Length: 100\r\n", b"only half of it", half=True)
    assert "202" not in status


@pytest.mark.parametrize(
    "name", ["Hookstation-Header-X-City", "Hookstation-Ordering-Key", "Idempotency-Key"]
)
def test_a_malformed_header_is_refused(broker: Broker, name: str) -> None:
    """The server passes on an empty text; stored, the value would be lost silently."""
    status, rest = send(broker, f"Content-Length: 1\r\n{name}: Zürich\r\n", b"x")
    assert "422" in status
    assert b"ASCII" in rest


def test_a_chunked_body_is_refused_with_411(broker: Broker) -> None:
    status, rest = send(broker, "Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n")
    assert "411" in status
    assert b"application/problem+json" in rest


def test_a_chunked_body_cut_short_is_never_stored(broker: Broker) -> None:
    status, _ = send(broker, "Transfer-Encoding: chunked\r\n", b"5\r\nhel", half=True)
    assert "202" not in status


@pytest.mark.parametrize(
    "head",
    [
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 5\r\n",
        "Content-Length: -3\r\n",
        "Content-Length: 3x\r\n",
        "Content-Length: +3\r\n",
    ],
)
def test_ambiguous_lengths_are_refused(broker: Broker, head: str) -> None:
    status, _ = send(broker, head, b"3\r\nabc\r\n0\r\n\r\n")
    assert status.split()[1].startswith("4")


def test_a_body_over_the_limit_is_refused_before_it_is_sent(broker: Broker) -> None:
    status, rest = send(broker, "Content-Length: 10000000000\r\n")
    assert "413" in status
    assert b"application/problem+json" in rest


def test_a_header_with_non_text_bytes_is_handled(broker: Broker) -> None:
    authorization = broker.http.headers["Authorization"]
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization!s}\r\n"
        "Content-Length: 1\r\nIdempotency-Key: "
    )
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as connection:
        connection.sendall(head.encode() + b"\xff\xfe\r\n\r\nx")
        status = connection.recv(65536).partition(b"\r\n")[0]
    assert status.split()[1].startswith(b"4")
