"""The benchmark's sink: it answers by path and logs what it receives."""

import random
import socket
import time
from collections.abc import Iterator

import pytest
import requests

from bench.adapters import body, number_in
from bench.sink import BEHAVIORS, DOWN, GARBAGE, OK, Sink


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as running:
        yield running


@pytest.fixture
def http() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


def test_it_logs_what_it_receives(sink: Sink, http: requests.Session) -> None:
    before = time.monotonic_ns()
    for number in (5, 6, 5):
        assert http.post(sink.url(3), data=body(number), timeout=60).status_code == 200

    records = sink.log.read()
    assert [record[:2] for record in records] == [(3, 5), (3, 6), (3, 5)]
    assert before < records[0][2] < records[1][2] < time.monotonic_ns()


def test_it_fails_and_hangs_where_it_is_told_to(sink: Sink, http: requests.Session) -> None:
    assert http.post(sink.url(4, "fail"), data=body(1), timeout=60).status_code == 500
    with pytest.raises(requests.ReadTimeout):
        http.post(sink.url(5, "hang"), data=body(2), timeout=0.3)

    assert [record[:2] for record in sink.log.read()] == [(4, 1), (5, 2)]


def test_it_answers_later_where_it_is_told_to(sink: Sink, http: requests.Session) -> None:
    before = time.monotonic()
    assert http.post(sink.url(6, "later"), data=body(1), timeout=60).status_code == 200
    assert time.monotonic() - before >= 0.1


def test_it_logs_which_messages_it_accepted(sink: Sink, http: requests.Session) -> None:
    statuses = [
        http.post(sink.url(7, "failing"), data=body(number), timeout=60).status_code
        for number in range(40)
    ]

    assert set(statuses) == {200, 500}
    accepted = [record[3] for record in sink.log.read()]
    assert accepted == [status == 200 for status in statuses]


def test_a_delayed_response_is_logged_when_it_is_sent(sink: Sink) -> None:
    before = time.monotonic_ns()
    with socket.create_connection(("127.0.0.1", sink.port), 5) as client:
        client.sendall(b"POST /later/1 HTTP/1.1\r\nContent-Length: 1024\r\n\r\n" + body(1))
        assert len(sink.log) == 0
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
        received = time.monotonic_ns()
    while not sink.log.read():
        time.sleep(0.01)

    (record,) = sink.log.read()
    assert record[:2] + record[3:] == (1, 1, True, 0)
    assert before < record[2] < received - 50_000_000, "when it was received, not answered"


def test_after_garbage_the_connection_is_closed(sink: Sink) -> None:
    request = b"POST /garbage/1 HTTP/1.1\r\nContent-Length: 1024\r\n\r\n" + body(1)
    with socket.create_connection(("127.0.0.1", sink.port), 5) as client:
        response = OK
        while response == OK:
            client.sendall(request)
            response = client.recv(4096)
        assert response == GARBAGE
        assert client.recv(4096) == b""


@pytest.mark.parametrize(
    ("at_s", "response"), [(100.0, DOWN), (104.9, DOWN), (105.0, OK), (119.9, OK), (120.0, DOWN)]
)
def test_a_flapping_consumer_is_down_at_the_start_of_each_period(
    at_s: float, response: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: at_s)
    assert BEHAVIORS["flapping"].choose(random.Random(0)) == response


@pytest.mark.parametrize("path", ["/", "/take", "/take/x", "/other/1", "//take/1"])
def test_other_paths_are_not_there(sink: Sink, http: requests.Session, path: str) -> None:
    address = f"http://127.0.0.1:{sink.port}{path}"
    assert http.post(address, data=body(1), timeout=60).status_code == 404
    assert len(sink.log) == 0


def test_a_message_without_a_number_is_not_ours(sink: Sink, http: requests.Session) -> None:
    assert http.post(sink.url(1), data=b"{}", timeout=60).status_code == 404


def test_requests_may_come_in_pieces_or_several_at_once(sink: Sink) -> None:
    whole = b"".join(
        b"POST /take/1 HTTP/1.1\r\nHost: h\r\ncontent-length: 1024\r\n\r\n" + body(number)
        for number in (1, 2)
    )
    with socket.create_connection(("127.0.0.1", sink.port), 5) as client:
        for piece in (whole[:30], whole[30:700], whole[700:1500], whole[1500:]):
            client.sendall(piece)
            time.sleep(0.02)
        answers = b""
        while answers.count(b"200 OK") < 2:
            more = client.recv(4096)
            assert more
            answers += more

    assert [record[:2] for record in sink.log.read()] == [(1, 1), (1, 2)]


def test_a_request_without_a_length_is_refused(sink: Sink) -> None:
    with socket.create_connection(("127.0.0.1", sink.port), 5) as client:
        client.sendall(b"POST /take/1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 411 ")


def test_a_number_is_found_in_any_wrapping() -> None:
    assert number_in(body(42)) == 42
    assert number_in(b'{"data": "' + body(7).replace(b'"', b'\\"') + b'"}') == 7
    assert number_in(b"bench-message-12") is None
    assert number_in(b"") is None
