"""A host whose clock differs too much from the database's claims nothing and is reported."""

import json
import time
from collections.abc import Callable

import pytest
from django.db import connection
from django.urls import reverse

from broker_site.observability import probes
from channels_app.database import clock
from channels_app.models import Channel, Message
from delivery.health import notifications
from delivery.models import PumpSlot
from delivery.processes import registration
from delivery.transport import payloads
from tests.support import console, pumping
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_rounds,
    pump_until,
)
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
Drift = Callable[[float], None]


@pytest.fixture
def drift(monkeypatch: pytest.MonkeyPatch) -> Drift:
    """Sets how many seconds this host's clock is ahead of the database's."""

    def drift(seconds: float) -> None:
        monkeypatch.setattr(clock, "drift_s", lambda: seconds)

    return drift


@pytest.mark.trap("a host whose clock is wrong")
def test_a_pump_claims_nothing_while_its_clock_is_too_far_off(
    receiver: Receiver, drift: Drift, caplog: pytest.LogCaptureFixture
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url())
    waiting = Message.objects.filter(state="accepted")
    drift(59.0)
    with pumping.pumping() as pump:
        publish(channel, b"0")
        pump_until(pump, all_finished)
        assert probes.pumps().ok, "it is within the limit"
        address = PumpSlot.objects.get().wake_address

        def has_caught_up() -> bool:
            pump.next_scan = 0.0  # it would look at the clock again after a second
            return not waiting.exists() and all_finished()

        for number, seconds in enumerate((61.0, -61.0), 1):
            caplog.clear()
            drift(seconds)
            publish(channel, b"%d" % number)
            pump_rounds(pump, 10)

            assert len(receiver.requests()) == number
            assert waiting.count() == 1
            slot = PumpSlot.objects.get()
            assert (slot.wake_address, slot.clock_offset_ms) == ("", seconds * 1000)
            ready = probes.pumps()
            assert (ready.ok, "None claims deliveries" in ready.detail) == (False, True)
            assert caplog.text.count("pump claims nothing") == 1

            drift(0.0)
            pump_until(pump, has_caught_up)
            assert len(receiver.requests()) == number + 1
            assert PumpSlot.objects.get().wake_address == address
            pump_rounds(pump, 2)
            assert probes.pumps().ok


@pytest.mark.mariadb
@pytest.mark.trap("a host whose clock is wrong")
def test_a_wrong_database_clock_is_noticed_at_the_next_check(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url())
    try:
        with pumping.pumping() as pump, connection.cursor() as cursor:
            publish(channel, b"1")
            assert abs(clock.drift_s()) < 60
            # Fixes the UTC_TIMESTAMP of this session.
            cursor.execute("SET timestamp = %s", [time.time() + 3600])
            clock.sync()
            assert -3660 < clock.drift_s() < -3540
            pump_rounds(pump, 20)
            assert receiver.requests() == []
            cursor.execute("SET timestamp = DEFAULT")
            clock.sync()
            pump_until(pump, all_finished)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET timestamp = DEFAULT")
        clock.sync()
    assert len(receiver.requests()) == 1


@pytest.mark.trap("a host whose clock is wrong")
def test_operators_are_notified_of_a_clock_offset_once_an_hour(
    drift: Drift, caplog: pytest.LogCaptureFixture
) -> None:
    notifications._warned.clear()
    Channel.objects.create(slug="hookstation")
    with pumping.pumping() as pump:
        for seconds in (0.9, 1.5, 1.6):
            drift(seconds)
            assert registration.beat(pump.held, 0)
            list(notifications.sweep())

        (message,) = Message.objects.all()
        assert message.event_type == "hookstation.clock.drifting"
        body = payloads.load([message.id])[message.id].body
        assert body is not None
        told = json.loads(body)
        host = PumpSlot.objects.get().host
        assert (told["type"], told["data"]) == (
            message.event_type,
            {"host": host, "offset_ms": 1500},
        )
        assert f"the clock of {host} differs by +1500 ms from the database's" in caplog.text
        page = console.look(console.operator(), reverse("admin:index"))
        assert "clock is +1.6 s from the database" in page
