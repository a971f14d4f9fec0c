"""Long-polling receivers over real HTTP, with polling so rare that only wake-ups end a wait."""

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.broker import (
    ANSWER_TIMEOUT_S,
    Broker,
    descendants,
    receivers_resumed,
    receivers_waiting,
    running,
    wait_until,
)
from tests.support.receiver import Receiver

pytestmark = pytest.mark.e2e
WAIT_S = 20
"""The longest wait that the API allows. Seconds."""
RECEIVERS = 1_000
WEB_THREADS = 8
SETTINGS = {
    # So long that only a wake-up datagram can end a wait.
    "HOOKSTATION_POLL_MS": "600000",
    "HOOKSTATION_WEB_WORKERS": "1",
    "HOOKSTATION_WEB_THREADS": str(WEB_THREADS),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("waiting"), **SETTINGS) as started:
        path = make_consumer(started, "warm-up", others=1)

        def is_woken() -> bool:
            """Whether wake-ups arrive: some are lost until the processes know each other."""
            waiting = waits(started, path, {"wait_s": 1})
            publish(started, path, "x")
            answer_of(waiting)
            receive(started, path, {})
            return receivers_resumed(started)["wakeup"] > 0

        wait_until(is_woken, 120, "nobody is woken", started.log)
        yield started


def make_consumer(broker: Broker, name: str, *, others: int = 0, **values: Any) -> str:
    """Make a channel with a pull consumer; return the consumer's path.

    Without ``others`` a waiting receiver claims a new message itself; with them a pump fans it out.
    """
    broker.call("PUT", f"/channels/{name}", 201, json={})
    for number in range(others):
        broker.call("PUT", f"/channels/{name}/consumers/{number}", 201, json={"mode": "pull"})
    path = f"/channels/{name}/consumers/one"
    broker.call("PUT", path, 201, json={"mode": "pull", **values})
    return path


def receive(broker: Broker, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    answer = requests.post(
        f"{broker.base}{path}/receive",
        json=asked,
        headers=dict(broker.http.headers),
        timeout=ANSWER_TIMEOUT_S,
    )
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def publish(broker: Broker, path: str, *bodies: str) -> list[str]:
    """Publish on the consumer's channel; return the message ids in order."""
    items = [{"body": body} for body in bodies]
    channel = path.partition("/consumers/")[0]
    found = broker.call("POST", f"{channel}/messages/batch", 207, json=items)
    return [item["id"] for item in found["items"]]


def request(broker: Broker, path: str, asked: dict[str, Any]) -> bytes:
    body = json.dumps(asked)
    head = (
        f"POST /api/v1{path}/receive HTTP/1.1\r\nHost: 127.0.0.1:{broker.port}\r\n"
        f"Authorization: {broker.http.headers['Authorization']!s}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


def waits(broker: Broker, path: str, asked: dict[str, Any]) -> socket.socket:
    """A connection with a waiting request."""
    one = socket.create_connection(("127.0.0.1", broker.port), ANSWER_TIMEOUT_S)
    before = receivers_waiting(broker)
    one.sendall(request(broker, path, asked))
    wait_until(lambda: receivers_waiting(broker) > before, 60, "it does not wait", broker.log)
    return one


def answer_of(one: socket.socket) -> list[dict[str, Any]]:
    with one, one.makefile("rb") as lines:
        assert lines.readline().split()[1] == b"200"
        length = 0
        while line := lines.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        messages: list[dict[str, Any]] = json.loads(lines.read(length))["messages"]
    return messages


def threads_of_web(broker: Broker) -> int:
    """Threads of the web process that has most: the one that answers requests."""
    assert broker.process is not None
    found = []
    for pid in descendants(broker.process.pid):
        if b"granian" in Path(f"/proc/{pid}/cmdline").read_bytes():
            status = Path(f"/proc/{pid}/status").read_text()
            found.append(int(status.partition("Threads:")[2].split()[0]))
    return max(found)


@pytest.mark.seed("S2-61")
@pytest.mark.trap("a thread per long poll")
def test_a_thousand_long_polls_are_woken_while_others_publish(broker: Broker) -> None:
    path = make_consumer(broker, "thousand")
    before, threads = receivers_resumed(broker), threads_of_web(broker)
    got: list[str] = []
    held: list[int] = []
    is_over = False

    async def one() -> None:
        asked = request(broker, path, {"wait_s": WAIT_S, "max": 1, "lease_s": 600})
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        while not is_over:
            writer.write(asked)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 OK" in head, head
            (length,) = re.findall(rb"content-length: (\d+)", head)
            if messages := json.loads(await reader.readexactly(int(length)))["messages"]:
                got.extend(message["id"] for message in messages)
                break
        writer.close()

    async def all_of_them() -> list[str]:
        nonlocal is_over
        receivers = [asyncio.create_task(one()) for _ in range(RECEIVERS)]

        def work() -> list[str]:
            """When all receivers wait, publish one message, then one for each of the others."""
            wait_until(
                lambda: receivers_waiting(broker) > 0.9 * RECEIVERS,
                120,
                "they do not wait",
                broker.log,
            )
            held.append(threads_of_web(broker))
            published = publish(broker, path, "first")
            wait_until(lambda: bool(got), 60, "the first is not received", broker.log)
            while len(published) < RECEIVERS:
                published += publish(broker, path, *["x"] * min(100, RECEIVERS - len(published)))
            return published

        published = await asyncio.to_thread(work)
        await asyncio.wait_for(asyncio.gather(*receivers), 180)
        is_over = True
        return published

    published = asyncio.run(all_of_them())
    assert sorted(got) == sorted(published)
    assert held[0] < threads + 2 * WEB_THREADS
    causes = receivers_resumed(broker) - before
    assert causes["scan"] == 0
    assert causes["accepted"] + causes["wakeup"] + causes["next"] > 0.5 * RECEIVERS, causes


@pytest.mark.parametrize(("others", "cause"), [(0, "accepted"), (1, "wakeup")])
def test_long_polls_are_served_in_arrival_order(broker: Broker, others: int, cause: str) -> None:
    path = make_consumer(broker, f"in-turn-{others}", others=others)
    before = receivers_resumed(broker)
    waiting = [waits(broker, path, {"wait_s": WAIT_S, "max": 1}) for _ in range(3)]
    ids = []
    for one in waiting:
        ids += publish(broker, path, "x")
        assert [message["id"] for message in answer_of(one)] == ids[-1:]
    assert receivers_resumed(broker) - before == {cause: 3}


@pytest.mark.trap("given to a disconnected client")
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("asked", [{}, {"auto_ack": True}], ids=["leased", "acknowledged"])
def test_a_disconnected_receiver_gets_no_message(
    broker: Broker, asked: dict[str, Any], others: int
) -> None:
    """The next receiver gets the message at once, as its first attempt."""
    path = make_consumer(broker, f"gone-{len(asked)}-{others}", others=others)
    first = waits(broker, path, {"wait_s": WAIT_S, **asked})
    second = waits(broker, path, {"wait_s": WAIT_S})
    first.close()
    ids = publish(broker, path, "x")
    (message,) = answer_of(second)
    assert ([message["id"]], message["attempt"]) == (ids, 1)


def release(broker: Broker, path: str, message: dict[str, Any]) -> None:
    broker.call("POST", "/leases/release", 200, json={"leases": [message["lease"]]})


def reject(broker: Broker, path: str, message: dict[str, Any]) -> None:
    asked = {"leases": [message["lease"]], "delay_s": 0}
    broker.call("POST", "/leases/nack", 200, json=asked)


def move(broker: Broker, path: str, message: dict[str, Any]) -> None:
    """Release the message with a delay, then move it to now."""
    asked = {"leases": [message["lease"]], "delay_s": 3600}
    broker.call("POST", "/leases/release", 200, json=asked)
    asked = {"messages": [{"id": message["id"], "delay_ms": 0}]}
    broker.call("POST", "/messages/move", 207, json=asked)


@pytest.mark.parametrize("give", [release, reject, move])
def test_a_released_message_wakes_a_long_poll(
    broker: Broker, give: Callable[[Broker, str, dict[str, Any]], None]
) -> None:
    path = make_consumer(broker, f"back-{give.__name__}")
    ids = publish(broker, path, "x")
    (message,) = receive(broker, path, {"wait_s": WAIT_S})
    before = receivers_resumed(broker)
    waiting = waits(broker, path, {"wait_s": WAIT_S})
    give(broker, path, message)
    assert [again["id"] for again in answer_of(waiting)] == ids
    assert (receivers_resumed(broker) - before)["wakeup"] == 1


def test_the_next_message_of_a_key_wakes_a_long_poll(broker: Broker) -> None:
    path = make_consumer(broker, "keys", ordering=True)
    items = [{"body": body, "ordering_key": "k"} for body in "ab"]
    broker.call("POST", "/channels/keys/messages/batch", 207, json=items)
    (first,) = receive(broker, path, {"wait_s": WAIT_S})
    waiting = waits(broker, path, {"wait_s": WAIT_S})
    broker.call("POST", "/leases/ack", 200, json={"leases": [first["lease"]]})
    assert [message["body"] for message in answer_of(waiting)] == ["b"]


@pytest.mark.seed("S2-62", "S3-22")
def test_a_push_queue_needs_no_waiting(broker: Broker, receiver: Receiver) -> None:
    broker.call("PUT", "/channels/calls", 201, json={})
    broker.call("PUT", "/channels/calls/consumers/all", 201, json={"url": receiver.url("/p")})
    for number in range(1, 6):
        broker.call("POST", "/channels/calls/messages", 202, data=b"x")
        receiver.wait_for(number, path="/p", timeout=60)
