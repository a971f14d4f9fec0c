"""Two hosts on one database: what one has answered holds on the other at once, under load."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

import pytest
import requests

from tests.crash.counts import Counts
from tests.crash.hosts import two_hosts
from tests.support.broker import ANSWER_TIMEOUT_S, Broker, wait_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.e2e
CONSUMERS = 8
"""Consumers per channel, enough for both pumps to be assigned some."""
BATCH, KEYS = 10, 2
PAUSE_S = 0.1
"""Between two batches of a producer: with eight active consumers, pumps cannot keep up."""
WAITING = 10 * BATCH
"""The most messages that wait for their fan-out. With more, a slow machine would be minutes behind,
and each test would wait for the messages of earlier ones."""
PATIENCE_S = 300.0
REQUESTS = """
    FROM delivery_attempt AS attempt
    JOIN delivery_delivery AS delivery ON delivery.id = attempt.delivery_id
    JOIN channels_app_consumer AS consumer ON consumer.id = delivery.consumer_id
    WHERE attempt.outcome <> 'interrupted' AND consumer.client_id =
"""
"""The requests to a consumer, whose name follows."""


class Hosts(NamedTuple):
    """Two brokers, and a consumer that both deliver to."""

    one: Broker
    other: Broker
    consumer: Receiver


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as pair, Receiver() as consumer:
        yield Hosts(*pair, consumer)


def register(hosts: Hosts, channel: str, **values: object) -> list[str]:
    """Make a channel and consumers; return their names, which are paths at the receiver."""
    hosts.one.call("PUT", f"/channels/{channel}", 201, json={})
    names = [f"{channel}-{number}" for number in range(CONSUMERS)]
    for name in names:
        target = {"url": hosts.consumer.url(f"/{name}"), **values}
        hosts.one.call("PUT", f"/channels/{channel}/consumers/{name}", 201, json=target)
    return names


@contextmanager
def load(broker: Broker, channel: str) -> Iterator[list[int]]:
    """Publish batches inside the block; yield the growing list of accepted messages per batch."""
    accepted: list[int] = []
    stopped = threading.Event()
    headers = dict(broker.http.headers)
    url = f"{broker.base}/channels/{channel}/messages/batch"
    batch = [{"body": "x", "ordering_key": f"key-{number % KEYS}"} for number in range(BATCH)]

    def produce() -> None:
        waiting = "SELECT COUNT(*) FROM channels_app_message WHERE state = 'accepted'"
        while not stopped.wait(PAUSE_S):
            if Counts(broker).number(waiting) > WAITING:
                continue
            answer = requests.post(url, json=batch, headers=headers, timeout=ANSWER_TIMEOUT_S)
            accepted.append(answer.json()["accepted"])

    producers = [threading.Thread(target=produce) for _ in range(2)]
    for producer in producers:
        producer.start()
    try:
        yield accepted
    finally:
        stopped.set()
        for producer in producers:
            producer.join()


def flows(accepted: list[int], broker: Broker, batches: int = 8) -> None:
    """Wait until ``batches`` more batches are accepted."""
    known = len(accepted)
    wait_until(lambda: len(accepted) >= known + batches, PATIENCE_S, "nothing flows", broker.log)


def begun(hosts: Hosts, consumer: str, when: str, at: datetime) -> int:
    """Count the requests to the consumer that began before or after an instant."""
    instant = at.strftime("%Y-%m-%d %H:%M:%S.%f")
    return Counts(hosts.one).number(
        f"SELECT COUNT(*) {REQUESTS} '{consumer}' AND attempt.started_at {when} '{instant}'"
    )


def has_begun(hosts: Hosts, consumer: str) -> bool:
    """Whether an attempt for the consumer is recorded."""
    return begun(hosts, consumer, "<=", datetime.now(UTC)) > 0


def got(hosts: Hosts, consumer: str) -> bool:
    """Whether the receiver got a request at that path."""
    return bool(hosts.consumer.requests(f"/{consumer}"))


def settled(hosts: Hosts, channel: str) -> None:
    """Wait until no delivery of a channel is in flight: then every attempt is recorded."""
    under_way = f"""
        FROM delivery_delivery AS delivery
        JOIN channels_app_consumer AS consumer ON consumer.id = delivery.consumer_id
        WHERE delivery.state = 'in_flight' AND consumer.client_id LIKE '{channel}-%'
    """

    def more() -> str:
        counts = Counts(hosts.one)
        columns = "consumer.client_id, consumer.state, delivery.due_at, delivery.lease_owner"
        held = counts.read(f"SELECT {columns} {under_way} LIMIT 10")
        pumps = counts.read("SELECT generation, pid, heartbeat_at, followed FROM delivery_pumpslot")
        logs = [broker.log()[-1000:] for broker in (hosts.one, hosts.other)]
        return "\n".join([str(datetime.now(UTC)), str(held), str(pumps), *logs])

    open_count = f"SELECT COUNT(*) {under_way}"
    wait_until(lambda: not Counts(hosts.one).number(open_count), PATIENCE_S, "not settled", more)


@pytest.mark.trap("a pause confirmed too early")
def test_no_request_begins_after_a_pause_is_confirmed(hosts: Hosts) -> None:
    names = register(hosts, "paused")
    paused: dict[str, datetime] = {}
    with load(hosts.one, "paused") as accepted:
        flows(accepted, hosts.one)
        for number, name in enumerate(names):
            there = (hosts.one, hosts.other)[number % 2]
            wait_until(partial(has_begun, hosts, name), PATIENCE_S, f"nothing went to {name}")
            there.call("POST", f"/channels/paused/consumers/{name}/pause", 200)
            paused[name] = datetime.now(UTC)
            flows(accepted, hosts.one, 2)
    settled(hosts, "paused")
    assert all(begun(hosts, name, "<=", at) for name, at in paused.items())
    assert {name: begun(hosts, name, ">", at) for name, at in paused.items()} == dict.fromkeys(
        names, 0
    )


@pytest.mark.trap("a pause confirmed too early")
def test_no_request_to_the_old_url_begins_after_a_change_is_confirmed(hosts: Hosts) -> None:
    names = register(hosts, "moved")
    moved: dict[str, datetime] = {}
    with load(hosts.one, "moved") as accepted:
        flows(accepted, hosts.one)
        for number, name in enumerate(names):
            there = (hosts.one, hosts.other)[number % 2]
            url = {"url": hosts.consumer.url(f"/{name}/new")}
            there.call("PATCH", f"/channels/moved/consumers/{name}", 200, json=url)
            moved[name] = datetime.now(UTC)
            flows(accepted, hosts.one, 2)
        for name in names:
            wait_until(partial(got, hosts, f"{name}/new"), PATIENCE_S, f"{name}/new got nothing")
            hosts.one.call("POST", f"/channels/moved/consumers/{name}/pause", 200)
    settled(hosts, "moved")
    for name, at in moved.items():
        assert len(hosts.consumer.requests(f"/{name}")) <= begun(hosts, name, "<=", at)


def pause(hosts: Hosts, key_rows: str, key: str) -> None:
    """Pause the key as soon as it has an open delivery."""

    def is_paused() -> bool:
        for key_row in hosts.one.call("GET", f"{key_rows}?ordering_key={key}", 200)["items"]:
            url = f"{hosts.other.base}{key_rows}/{key_row['id']}/pause"
            return hosts.other.http.post(url, timeout=ANSWER_TIMEOUT_S).ok
        return False

    wait_until(is_paused, PATIENCE_S, f"nothing of {key} is open")


@pytest.mark.trap("a pause confirmed too early")
def test_no_request_of_a_paused_ordering_key_begins(hosts: Hosts) -> None:
    names = register(hosts, "keyed", ordering=True)
    paused: dict[str, datetime] = {}
    with load(hosts.one, "keyed") as accepted:
        flows(accepted, hosts.one)
        for name in names:
            key_rows = f"/channels/keyed/consumers/{name}/ordering-keys"
            wait_until(partial(has_begun, hosts, name), PATIENCE_S, f"nothing went to {name}")
            for number in range(KEYS):
                pause(hosts, key_rows, f"key-{number}")
            paused[name] = datetime.now(UTC)
            flows(accepted, hosts.one, 2)
    settled(hosts, "keyed")
    assert all(begun(hosts, name, "<=", at) for name, at in paused.items())
    assert not any(begun(hosts, name, ">", at) for name, at in paused.items())


@pytest.mark.trap("a pause confirmed too early")
def test_a_frozen_pump_begins_no_request_when_it_continues(hosts: Hosts) -> None:
    names = register(hosts, "frozen")
    with load(hosts.one, "frozen") as accepted:
        flows(accepted, hosts.one)
        pumps = Counts(hosts.one).living("pump")
        (pid,) = set(pumps).intersection(hosts.other.workers())
        os.kill(pid, signal.SIGSTOP)
        try:
            for name in names:
                hosts.one.call("POST", f"/channels/frozen/consumers/{name}/pause", 200)
            at = datetime.now(UTC)
        finally:
            with suppress(ProcessLookupError):  # its supervisor has replaced it
                os.kill(pid, signal.SIGCONT)
        flows(accepted, hosts.one)
    settled(hosts, "frozen")
    assert not any(begun(hosts, name, ">", at) for name in names)


@pytest.mark.trap("a 404 for a new object")
def test_objects_created_on_one_host_are_known_on_the_other(hosts: Hosts) -> None:
    statuses = []
    for number in range(30):
        channel = f"/channels/fresh-{number}"
        hosts.one.call("PUT", channel, 201, json={})
        url = f"{hosts.other.base}{channel}/messages"
        answer = hosts.other.http.post(url, data=b"x", timeout=ANSWER_TIMEOUT_S)
        statuses.append(answer.status_code)
        hosts.one.call("PUT", f"{channel}/consumers/pull", 201, json={"mode": "pull"})
        url = f"{hosts.other.base}{channel}/consumers/pull/receive"
        statuses.append(hosts.other.http.post(url, json={}, timeout=ANSWER_TIMEOUT_S).status_code)
    assert statuses == [202, 200] * 30


def most_at_once(hosts: Hosts, consumer: str) -> int:
    """The most requests to a consumer that were open at the same time."""
    rows = Counts(hosts.one).read(
        f"SELECT attempt.started_at, attempt.total_ms {REQUESTS} '{consumer}'"
    )
    changes: list[tuple[datetime, int]] = []
    for text, total_ms in rows:
        started_at = text if isinstance(text, datetime) else datetime.fromisoformat(text)
        # 10 % early: the next request may begin as soon as the response is read.
        ended_at = started_at + timedelta(milliseconds=total_ms * 0.9)
        changes += [(started_at, 1), (ended_at, -1)]
    count = most = 0
    for _, change in sorted(changes):
        count += change
        most = max(most, count)
    return most


@pytest.mark.trap("a limit that applies twice")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_caps_hold_while_a_host_leaves_and_joins(hosts: Hosts, end: signal.Signals) -> None:
    channel = f"capped-{end.name.lower()}"
    names = register(hosts, channel, max_in_flight=3)
    for name in names[::2]:  # the other consumers have one pump
        target = f"/channels/{channel}/consumers/{name}"
        hosts.one.call("PATCH", target, 200, json={"max_pumps": 2})
    for name in names:
        hosts.consumer.script(f"/{name}", [Reply(200, delay_ms=200)])
    with load(hosts.one, channel) as accepted:
        flows(accepted, hosts.one)
        hosts.other.stop(end)
        flows(accepted, hosts.one)
        hosts.other.start()
        answered = {name: len(hosts.consumer.requests(f"/{name}")) for name in names}

        def is_more_answered() -> bool:
            counts = {name: len(hosts.consumer.requests(f"/{name}")) for name in names}
            return all(counts[name] > answered[name] + 9 for name in names)

        wait_until(is_more_answered, PATIENCE_S, "nothing is delivered", hosts.other.log)
        for name in names:
            hosts.one.call("POST", f"/channels/{channel}/consumers/{name}/pause", 200)
    settled(hosts, channel)
    assert {name: most_at_once(hosts, name) for name in names} == dict.fromkeys(names, 3)
