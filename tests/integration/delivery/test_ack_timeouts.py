"""The adaptive acknowledgement timeout, as the pump learns it from the tables (S3-30)."""

from datetime import timedelta
from typing import Any

import pytest

from channels_app.database import clock
from channels_app.models import Consumer
from channels_app.serializers.acks import Ack
from delivery.acks import decisions
from delivery.core import acks
from delivery.models import Attempt, Delivery
from tests.support import pumping
from tests.support.counts import make_deliveries
from tests.support.factories import AttemptFactory
from tests.support.pumping import make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
ADAPTIVE = {"mode": "callback", "timeout_ms": "adaptive", "on_timeout": "proceed"}


def read_ack(value: Any) -> Any:
    return Ack().take(value)


def bounds(low: int = 10, high: int = 60_000) -> acks.Bounds:
    return acks.Bounds(low, high)


def past(consumer: Consumer, count: int, took_ms: int, reason: str = "acknowledged") -> None:
    """Create deliveries that were answered after 40 ms and acknowledged ``took_ms`` later."""
    started = clock.now() - timedelta(minutes=1)
    rows = make_deliveries(
        consumer,
        count,
        state="delivered",
        reason=reason,
        attempt_count=1,
        finished_at=started + timedelta(milliseconds=40 + took_ms),
    )
    Attempt.objects.bulk_create(
        [AttemptFactory.build(delivery=row, started_at=started, total_ms=40) for row in rows]
    )


def test_the_setting_has_bounds() -> None:
    stored = read_ack(ADAPTIVE)
    assert acks.bounds_of(stored) == (100, 60_000)
    assert read_ack(stored) == stored
    mode = acks.mode_of(stored)
    assert mode is not None
    assert mode.wait_s == 60, "nothing is known yet"
    assert acks.mode_of(stored, 250.0) == acks.Mode("callback", 0.25, "proceed")
    assert acks.bounds_of(read_ack({"mode": "callback"})) is None
    for wrong in (
        ADAPTIVE | {"timeout_min_ms": 500, "timeout_max_ms": 400},
        ADAPTIVE | {"timeout_ms": "soon"},
        ADAPTIVE | {"timeout_ms": 500, "timeout_min_ms": 400},
    ):
        with pytest.raises(ValueError, match=r"timeout|number"):
            read_ack(wrong)


@pytest.mark.seed("S3-30")
def test_acknowledgement_timeout_adapts_to_recent_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "RECENT", 60)
    consumer = make_consumer(make_channel(), "http://127.0.0.1:9/", ack=read_ack(ADAPTIVE))
    assert decisions.measured_wait_ms(consumer.id, bounds()) == 60_000
    past(consumer, 25, 200)
    assert decisions.measured_wait_ms(consumer.id, bounds()) == pytest.approx(300)
    assert decisions.measured_wait_ms(consumer.id, bounds(low=400)) == 400
    assert decisions.measured_wait_ms(consumer.id, bounds(high=250)) == 250
    past(consumer, 26, 300, reason="ack_timeout")
    assert decisions.measured_wait_ms(consumer.id, bounds()) == 60_000, "most said nothing in time"
    past(consumer, decisions.RECENT, 100)
    assert decisions.measured_wait_ms(consumer.id, bounds()) == pytest.approx(150), (
        "the old ones are gone"
    )
    Delivery.objects.update(attempt_count=2)
    assert decisions.measured_wait_ms(consumer.id, bounds()) == 60_000


@pytest.mark.seed("S3-30")
def test_the_pump_waits_for_the_adapted_timeout(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/ok"), ack=read_ack(ADAPTIVE))
    past(consumer, 25, 200)
    waiting = Delivery.objects.filter(state="awaiting_ack")
    with pumping.pumping() as pump:
        publish(channel, b"first")
        pump_until(pump, waiting.exists)
        first = waiting.get()
        assert first.due_at is not None
        assert first.due_at - clock.now() > timedelta(seconds=30), "nothing was known yet"
        publish(channel, b"second")
        done = Delivery.objects.filter(state="delivered", reason="ack_timeout")
        pump_until(pump, done.exists)
        late = done.get()
    assert late.finished_at is not None
    sent = Attempt.objects.get(delivery_id=late.id)
    assert late.finished_at - sent.started_at >= timedelta(milliseconds=250)
    assert Delivery.objects.get(id=first.id).state == "awaiting_ack"
