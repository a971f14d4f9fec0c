"""Wake-ups reach the pump that owns the work, and nothing depends on them."""

import select
import socket
from datetime import timedelta

import pytest

from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, Message
from delivery.conf import conf
from delivery.core import recipients
from delivery.core.health_status import DISABLE_FAILURES
from delivery.models import ConsumerHealth, PumpSlot
from delivery.processes import registration
from delivery.processes.wakeups import Listener, wakeup_sender
from tests.support import pumping
from tests.support.pumping import make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)


def heard(listener: Listener) -> bool:
    return bool(select.select([listener.socket], [], [], 60.0)[0])


def test_an_accepted_message_wakes_a_pump_after_its_commit() -> None:
    channel = make_channel()
    with pumping.pumping() as pump:
        publish(channel, b"x", priority=7)
        assert heard(pump.listener)
        hints = pump.listener.read()
    assert hints.accepted
    assert hints.message_ids == {Message.objects.get().id: 7}


def test_messages_beyond_a_full_datagram_are_found() -> None:
    channel = make_channel()
    with pumping.pumping() as pump:
        publish(channel, *[b"x"] * 200)
        assert heard(pump.listener)
        ids = pump.listener.read().message_ids
    assert 50 < len(ids) < 200
    assert ids.keys() < set(Message.objects.values_list("id", flat=True))


def test_due_consumers_wake_the_pump_that_owns_them() -> None:
    consumers = [make_consumer(make_channel(), "http://127.0.0.1:9/").id for _ in range(20)]
    with pumping.pumping() as one, pumping.pumping() as other:
        generations = {one.held.generation, other.held.generation}
        wakeup_sender.due(consumers)
        for pump in (one, other):
            mine = {
                consumer_id
                for consumer_id in consumers
                if recipients.owning_consumer(consumer_id, generations) == pump.held.generation
            }
            assert heard(pump.listener)
            assert pump.listener.read().consumer_ids == mine


def test_garbage_is_ignored() -> None:
    listener = Listener()
    host, port = listener.address.split(" ")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for datagram in (b"", b"due x 1.5 -3 7", b"\xff" * 1400, b"accepted!"):
            stranger.sendto(datagram, (host, int(port)))
        assert heard(listener)
        hints = listener.read()
    assert not hints.accepted
    assert hints.consumer_ids == {7}
    listener.close()


def test_a_wakeup_to_a_gone_pump_does_not_delay_publishing() -> None:
    slot = registration.acquire("gone", "pump", 1, "127.0.0.1 1")
    assert slot is not None
    channel = make_channel()
    assert publish(channel, b"x", b"y")
    PumpSlot.objects.all().delete()


@pytest.mark.trap("messages for a disabled consumer are lost")
def test_days_of_failure_disable_a_consumer_and_keep_its_backlog(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(
        channel, receiver.url("/status/500"), retry=[60], max_attempts=9, max_in_flight=1
    )
    long_ago = clock.now() - timedelta(days=conf().disable_after_days, hours=1)
    ConsumerHealth.objects.create(
        consumer=consumer, failing_since=long_ago, consecutive_failures=DISABLE_FAILURES
    )
    publish(channel, b"1", b"2", b"3")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Consumer.objects.get().state == "disabled")
    consumer.refresh_from_db()
    assert "5 days" in consumer.state_reason
    assert AuditEntry.objects.get(action="consumer.disable").actor == "broker"
    assert consumer.deliveries.filter(state="queued").count() == 3


@pytest.mark.trap("two lone failures disable a webhook")
@pytest.mark.parametrize(
    ("earlier", "state", "reason"),
    [
        pytest.param(1, "active", "", id="two lone failures"),
        pytest.param(DISABLE_FAILURES - 2, "active", "", id="one too few"),
        pytest.param(
            *(DISABLE_FAILURES - 1, "disabled"),
            f"Its last {DISABLE_FAILURES} attempts failed, over more than 5 days.",
            id="enough",
        ),
    ],
)
def test_few_failures_disable_nobody_however_far_apart(
    receiver: Receiver, earlier: int, state: str, reason: str
) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/status/500"), max_attempts=1)
    long_ago = clock.now() - timedelta(days=conf().disable_after_days, hours=1)
    ConsumerHealth.objects.create(
        consumer=consumer, failing_since=long_ago, consecutive_failures=earlier
    )
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: ConsumerHealth.objects.get().consecutive_failures == earlier + 1)
        pump.round()
    consumer.refresh_from_db()
    assert (consumer.state, consumer.state_reason) == (state, reason)
