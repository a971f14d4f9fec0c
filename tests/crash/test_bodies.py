"""A corpus of real bodies through a running broker: unchanged, signed, and through kill -9."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.support import broker as broker_module
from tests.support.bodies import Sample, corpus
from tests.support.broker import Broker, heard_ids, wait_until
from tests.support.receiver import Receiver, Reply

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e, pytest.mark.mysql]
NAMES = ("one", "two", "three")


def register(broker: Broker, receiver: Receiver, **values: Any) -> dict[str, str]:
    """Make a channel with three consumers; return their secrets by name."""
    broker.call("PUT", "/channels/hooks", 201, json={})
    return {
        name: broker.call(
            "PUT",
            f"/channels/hooks/consumers/{name}",
            201,
            json={"url": receiver.url(f"/{name}"), "max_in_flight": 16, **values},
        )["secret"]
        for name in NAMES
    }


def publish(broker: Broker, samples: list[Sample]) -> dict[str, bytes]:
    """Publish each body in one request; return the bodies by message id."""
    sent = {}
    for number, sample in enumerate(samples):
        answer = broker.call(
            "POST",
            "/channels/hooks/messages",
            202,
            data=sample.body,
            headers={
                "Content-Type": "application/json",
                "Hookstation-Event-Type": sample.event,
                "Idempotency-Key": f"body-{number}",
            },
        )
        assert answer["matched_consumers"] == len(NAMES)
        sent[answer["id"]] = sample.body
    return sent


def check_arrivals(receiver: Receiver, secrets: dict[str, str], sent: dict[str, bytes]) -> int:
    """Check that all bodies arrived unchanged and signed; return how many came twice."""
    twice = 0
    for name in NAMES:
        verifier = Webhook(secrets[name])
        counts = Counter(heard_ids(receiver, f"/{name}"))
        assert set(counts) == set(sent)
        twice += sum(counts.values()) - len(counts)
        for request in receiver.requests(f"/{name}"):
            assert request.body == sent[request.header("webhook-id") or ""]
            headers = {key.lower(): value for key, value in request.headers}
            verifier.verify(request.body, headers)
    return twice


def all_heard(receiver: Receiver, sent: dict[str, bytes]) -> bool:
    return all(set(heard_ids(receiver, f"/{name}")) == set(sent) for name in NAMES)


@pytest.mark.seed("S0-02")
def test_every_body_arrives_byte_for_byte_with_a_valid_signature(
    tmp_path: Path, receiver: Receiver
) -> None:
    with broker_module.running(tmp_path) as broker:
        secrets = register(broker, receiver)
        sent = publish(broker, corpus())
        wait_until(lambda: all_heard(receiver, sent), 60, "bodies are missing", broker.log)
        assert check_arrivals(receiver, secrets, sent) == 0
        for message_id in list(sent)[:3]:
            message = broker.call("GET", f"/messages/{message_id}", 200)
            assert {row["state"] for row in message["deliveries"]} == {"Delivered"}


@contextmanager
def killing_workers(broker: Broker) -> Iterator[list[int]]:
    """Kill a random worker process every 0.5 s; yield the growing list of process ids."""
    killed: list[int] = []
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.5):
            if workers := broker.workers():
                victim = random.choice(workers)
                with_suppressed_kill(victim)
                killed.append(victim)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def with_suppressed_kill(pid: int) -> None:
    """Kill a process, which may have ended a moment ago."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.seed("S0-05")
def test_kill_9_of_workers_loses_nothing(
    tmp_path: Path, receiver: Receiver, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        receiver.script(f"/{name}", _slow_replies())
    with broker_module.running(tmp_path) as broker:
        secrets = register(broker, receiver)
        with killing_workers(broker) as killed:
            sent = publish(broker, corpus())
            time.sleep(1.0)
        wait_until(lambda: all_heard(receiver, sent), 90, "bodies are missing", broker.log)
        twice = check_arrivals(receiver, secrets, sent)
        record_property("arrived_twice", twice)
        with capsys.disabled():
            print(  # noqa: T201 (the number is what the test is asked for)
                f"\n{len(killed)} worker processes killed, {len(sent)} messages to {len(NAMES)} "
                f"consumers: 0 lost, {twice} arrived twice"
            )
        assert killed
        wait_until(lambda: _settled(broker), 30, "deliveries stay open", broker.log)


def _settled(broker: Broker) -> bool:
    rows = broker.call("GET", "/channels/hooks/consumers/one/deliveries?limit=200", 200)["items"]
    return {row["state"] for row in rows} == {"Delivered"}


def _slow_replies() -> list[Reply]:
    return [Reply(delay_ms=20)]
