"""Retry settings by event type apply on every path that handles a failure."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Consumer
from delivery.acks import callbacks
from delivery.core import acks
from delivery.core.lifecycle import ClaimedDelivery
from delivery.core.outcome import Outcome
from delivery.models import Delivery, PendingAck
from delivery.queue import release, settle
from delivery.queue.settle import Result
from tests.support import pumping
from tests.support.calling import Api
from tests.support.ordering import take
from tests.support.pulling import Worker, bring, lapse, waiting
from tests.support.pumping import make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
OWN: dict[str, Any] = {"retry": [60], "max_attempts": 2}
OVERRIDES = [
    {"event_types": ["hint.urgent"], "retry": [600], "max_attempts": None},
    {"event_types": ["hint.*"], "retry": "once", "max_attempts": None},
    {"event_types": ["invoice.*"], "retry": [3600], "max_attempts": 5},
]
ALLOWED = {"hint.seen": 1, "hint.urgent": 2, "invoice.paid": 5, "other": 2, "": 2}
"""Allowed attempts by event type."""
WAITS_S = {"hint.urgent": 600, "invoice.paid": 3600, "other": 60, "": 60}
ACK = {"mode": "callback", "timeout_ms": 60_000, "on_timeout": "retry"}


def bring_all(consumer: Consumer) -> None:
    for event_type in ALLOWED:
        bring(consumer, event_type.encode(), event_type=event_type)


def answered(rows: list[ClaimedDelivery], now: datetime) -> None:
    """Record a 2xx response for each delivery."""
    mode = acks.mode_of(ACK)
    assert mode is not None
    settle.settle(
        [Result(row, mode.answered, Outcome.DELIVERED, now, "test") for row in rows],
        now=now,
        slot=0,
    )


def assert_each_follows_its_own(since: datetime | None = None, *, waits: bool = True) -> None:
    """Check after one failure of each which are dead, and when the others are due after ``since``.

    A charged lease is due again at once, without ``waits``.
    """
    rows = {row.event_type: row for row in Delivery.objects.all()}
    assert rows.keys() == ALLOWED.keys()
    for event_type, row in rows.items():
        assert row.failure_count == 1, event_type
        if ALLOWED[event_type] == 1:
            assert (row.state, row.due_at, row.reason) == ("dead", None, "exhausted"), event_type
            continue
        assert row.state == "queued", event_type
        if waits:
            assert row.due_at is not None
            wait_s = (row.due_at - (since or clock.now())).total_seconds()
            assert 0.75 < wait_s / WAITS_S[event_type] < 1.25, event_type


def test_push(receiver: Receiver) -> None:
    consumer = make_consumer(
        make_channel(), receiver.url("/status/500"), retry_overrides=OVERRIDES, **OWN
    )
    for event_type in ALLOWED:
        publish(consumer.channel, event_type.encode(), event_type=event_type)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Delivery.objects.filter(failure_count=1).count() == len(ALLOWED))
        assert_each_follows_its_own()
    said = {
        one.body.decode(): int(one.header("Hookstation-Max-Attempts") or 0)
        for one in receiver.requests()
    }
    assert said == ALLOWED


def test_a_running_pump_follows_a_change(receiver: Receiver) -> None:
    consumer = make_consumer(
        make_channel(), receiver.url("/status/500"), retry=[0.01], max_attempts=3
    )
    path = f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}"
    change = {"retry_overrides": [{"event_types": ["hint"], "max_attempts": 1}]}
    with pumping.pumping() as pump:
        publish(consumer.channel, b"before", event_type="hint")
        pump_until(pump, pumping.all_finished)
        assert Api(scopes=["register"]).patch(path, change).status_code == 200
        publish(consumer.channel, b"after", event_type="hint")
        pump_until(pump, lambda: Delivery.objects.filter(state="dead").count() == 2)
    counts = list(Delivery.objects.order_by("id").values_list("attempt_count", flat=True))
    assert counts == [3, 1]


def test_retry_overrides_apply_to_nacks_as_they_are_now() -> None:
    """A lease token does not contain the event type, so current settings apply."""
    consumer = waiting(**OWN)
    bring_all(consumer)
    worker = Worker(consumer)
    received = worker.receive(max=10)
    consumer.retry_overrides = OVERRIDES
    consumer.save()
    pumping.view_of(consumer.channel)
    worker.say("nack", *(one["lease"] for one in received))
    assert_each_follows_its_own()


@pytest.mark.parametrize("how", ["release", "claim", "sweep"])
def test_retry_overrides_apply_to_charged_leases(how: str) -> None:
    """Leases released by the worker, found lapsed by a claim, or swept for a paused consumer."""
    consumer = waiting(lapsed_leases="charged", retry_overrides=OVERRIDES, **OWN)
    bring_all(consumer)
    worker = Worker(consumer)
    received = worker.receive(max=10)
    assert {one["event_type"]: one["max_attempts"] for one in received} == ALLOWED
    if how == "release":
        worker.say("release", *(one["lease"] for one in received))
    else:
        lapse(consumer)
    if how == "sweep":
        consumer.state = Consumer.State.PAUSED
        consumer.save()
        pumping.view_of(consumer.channel)
        release.release_lapsed(now=clock.now(), slot=0)
    if how != "claim":
        assert_each_follows_its_own(waits=False)
        return
    again = worker.receive(max=10)
    assert {one["event_type"] for one in again} == {it for it in ALLOWED if ALLOWED[it] > 1}
    dead = Delivery.objects.get(state="dead")
    assert (dead.event_type, dead.outcome) == ("hint.seen", "lease_expired")
    worker.say("nack", *(one["lease"] for one in again))
    assert set(Delivery.objects.filter(state="queued").values_list("event_type", flat=True)) == {
        "invoice.paid"
    }


@pytest.fixture
def awaited() -> Consumer:
    """A consumer that acknowledges later, with a delivery of each event type."""
    consumer = make_consumer(
        make_channel(), "http://127.0.0.1:9/", ack=ACK, retry_overrides=OVERRIDES, **OWN
    )
    bring_all(consumer)
    return consumer


def test_retry_overrides_apply_to_missing_acknowledgements(awaited: Consumer) -> None:
    now = clock.now() + timedelta(seconds=5)
    answered(take(awaited, now), now)
    later = now + timedelta(minutes=2)
    assert not take(awaited, later)
    assert_each_follows_its_own(later)


@pytest.mark.parametrize("when", ["on time", "early", "before a kill"])
def test_retry_overrides_apply_to_failure_callbacks(awaited: Consumer, when: str) -> None:
    now = clock.now() + timedelta(seconds=5)
    rows = take(awaited, now)
    assert len(rows) == len(ALLOWED)
    if when == "on time":
        answered(rows, now)
    for row in rows:
        callbacks.acknowledge(row.id, ok=False, now=now)
    if when == "early":
        assert PendingAck.objects.count() == len(ALLOWED)
        answered(rows, now)
    elif when == "before a kill":
        release.release_owner(1, now=now, slot=0)
    assert_each_follows_its_own(now)


def test_a_test_delivery_names_the_attempts_of_its_event_type(receiver: Receiver) -> None:
    consumer = make_consumer(
        make_channel(), receiver.url("/ok"), event_types=["hint.seen"], retry_overrides=OVERRIDES
    )
    path = f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}/test"
    assert Api(scopes=["register"]).post(path, {}).status_code == 200
    assert receiver.requests()[0].header("Hookstation-Max-Attempts") == "1"


def test_a_replay_begins_with_the_attempts_of_its_event_type() -> None:
    consumer = waiting(retry_overrides=OVERRIDES, **OWN)
    bring(consumer, b"x", event_type="hint.seen")
    worker = Worker(consumer)
    for _ in range(2):
        (one,) = worker.receive()
        worker.say("nack", one["lease"])
        row = Delivery.objects.get()
        assert (row.state, row.failure_count) == ("dead", 1)
        path = f"/deliveries/{ids.to_public(ids.DELIVERY, row.id)}/replay"
        assert Api(scopes=["replay"]).post(path, {"reason": "again"}).status_code in {200, 202}
