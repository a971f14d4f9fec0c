"""A corpus of real bodies through a running broker: unchanged, signed, and through kill -9."""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.crash.counts import Counts
from tests.support.bodies import Sample, corpus
from tests.support.broker import Broker, heard_ids, wait_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.e2e
SETTINGS: dict[str, str] = {}
NAMES = ("one", "two", "three")


def register(broker: Broker, receiver: Receiver, channel: str) -> dict[str, str]:
    """Make a channel with three consumers; return their secrets by name."""
    broker.call("PUT", f"/channels/{channel}", 201, json={})
    return {
        name: broker.call(
            "PUT",
            f"/channels/{channel}/consumers/{name}",
            201,
            json={"url": receiver.url(f"/{name}"), "max_in_flight": 16},
        )["secret"]
        for name in NAMES
    }


def publish(broker: Broker, channel: str, samples: list[Sample]) -> dict[str, bytes]:
    """Publish each body in one request; return the bodies by message id."""
    sent = {}
    for number, sample in enumerate(samples):
        answer = broker.call(
            "POST",
            f"/channels/{channel}/messages",
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


@contextmanager
def killing_workers(broker: Broker) -> Iterator[list[int]]:
    """Kill a random worker process every 0.5 s; yield the growing list of process ids."""
    killed: list[int] = []
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.5):
            if workers := broker.workers():
                victim = random.choice(workers)
                with suppress(ProcessLookupError):  # it may have ended a moment ago
                    os.kill(victim, signal.SIGKILL)
                killed.append(victim)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(False, marks=[pytest.mark.mysql, pytest.mark.seed("S0-02")], id="no_kills"),
        pytest.param(True, marks=pytest.mark.seed("S0-05"), id="kill_9"),
    ],
)
def test_every_body_arrives_byte_for_byte_with_a_valid_signature(
    started: Broker,
    receiver: Receiver,
    kills: bool,
    record_property: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker, channel = started, "hooks"
    killing: AbstractContextManager[list[int]] = nullcontext([])
    if kills:
        channel, killing = "killed", killing_workers(broker)
        for name in NAMES:
            receiver.script(f"/{name}", [Reply(delay_ms=20)])
    secrets = register(broker, receiver, channel)
    with killing as killed:
        sent = publish(broker, channel, corpus())
        wait_until(lambda: len(killed) > 2 or not kills, 60, "nobody is killed", broker.log)
    wait_until(lambda: all_heard(receiver, sent), 90, "bodies are missing", broker.log)
    Counts(broker).settle()
    twice = check_arrivals(receiver, secrets, sent)
    if kills:
        record_property("arrived_twice", twice)
        with capsys.disabled():
            print(  # noqa: T201 (the number is what the test is asked for)
                f"\n{len(killed)} worker processes killed, {len(sent)} messages to {len(NAMES)} "
                f"consumers: 0 lost, {twice} arrived twice"
            )
    else:
        assert twice == 0
    for message_id in sent:
        message = broker.call("GET", f"/messages/{message_id}", 200)
        assert {row["state"] for row in message["deliveries"]} == {"Delivered"}
