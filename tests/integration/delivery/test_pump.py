"""The path of a message through a real pump, a real consumer and the real tables."""

import time
from datetime import timedelta

import pytest
from standardwebhooks import Webhook

from channels_app.core import ids
from channels_app.core.encryption import Keyring, generate_key
from channels_app.database import clock
from channels_app.models import Consumer, Message, MessageBody
from delivery.models import Attempt, ConsumerHealth, Counter, Delivery
from delivery.processes import registration
from tests.support import pumping
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_rounds,
    pump_until,
)
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)


def test_pump_delivers_exact_signed_bytes_to_every_consumer(receiver: Receiver) -> None:
    channel = make_channel()
    for name in ("a", "b", "c"):
        make_consumer(channel, receiver.url(f"/{name}"))
    body = bytes(range(256)) + "✓".encode()
    (message_id,) = publish(
        channel, body, content_type="application/octet-stream", headers={"X-Shop": "7"}
    )
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    requests = receiver.requests()
    assert sorted(request.path for request in requests) == ["/a", "/b", "/c"]
    for request in requests:
        assert request.body == body
        assert request.header("webhook-id") == ids.to_public("msg", message_id)
        assert request.header("content-type") == "application/octet-stream"
        assert request.header("x-shop") == "7"
        assert request.header("hookstation-attempt") == "1"
    assert Counter.totals() == pumping.recounted()
    assert Counter.totals()["delivered"] == 3


def test_the_reference_library_accepts_the_signature(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    publish(channel, b'{"type":"order.created"}', content_type="application/json")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    (request,) = receiver.requests()
    headers = {name.lower(): value for name, value in request.headers}
    assert Webhook(pumping.SECRET).verify(request.body, headers) == {"type": "order.created"}


@pytest.mark.seed("S0-39")
def test_a_delivery_is_dead_after_exactly_max_attempts(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/status/500"), max_attempts=3)
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        pump_rounds(pump, 3)
    assert len(receiver.requests()) == 3
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.reason) == ("dead", "exhausted")
    assert [row.outcome for row in Attempt.objects.order_by("number")] == ["server_error"] * 3
    assert [r.header("hookstation-attempt") for r in receiver.requests()] == ["1", "2", "3"]


def test_a_failing_message_is_delivered_once_its_consumer_recovers(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/flaky"), max_attempts=5)
    receiver.script("/flaky", [Reply(500), Reply(502, headers=(("Retry-After", "0"),)), Reply(200)])
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished, 15)
    assert Delivery.objects.get().state == "delivered"
    assert len(receiver.requests()) == 3
    health = ConsumerHealth.objects.get()
    assert (health.circuit, health.failing_since) == ("closed", None)


@pytest.mark.trap("two workers claim the same row")
@pytest.mark.seed("S0-40")
def test_higher_priority_goes_first(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"), max_in_flight=1)
    publish(channel, *[b"low"] * 8, priority=1)
    publish(channel, *[b"high"] * 8, priority=9)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    bodies = [request.body for request in receiver.requests()]
    assert bodies[:8] == [b"high"] * 8


@pytest.mark.seed("S0-42")
def test_low_priority_does_not_starve(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"), max_in_flight=1)
    publish(channel, b"low", priority=0)
    publish(channel, *[b"high"] * 40, priority=9)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    bodies = [request.body for request in receiver.requests()]
    assert bodies.index(b"low") < 15


def test_nothing_is_sent_before_its_time(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    due_at = clock.now() + timedelta(milliseconds=400)
    publish(channel, b"later", due_at=due_at)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    attempt = Attempt.objects.get()
    assert attempt.started_at >= due_at


def test_an_expired_message_is_cancelled_and_not_sent(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    publish(channel, b"old", expires_at=clock.now() - timedelta(seconds=1))
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.reason, delivery.outcome) == (
        "cancelled",
        "expired",
        "expired",
    )
    assert receiver.requests() == []
    assert Counter.totals() == pumping.recounted()


@pytest.mark.trap("messages for a disabled consumer are lost")
@pytest.mark.seed("S0-76")
def test_a_paused_consumer_keeps_its_backlog(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/ok"), state="paused")
    publish(channel, *[b"x"] * 20)
    with pumping.pumping() as pump:
        pump_rounds(pump, 5)
        assert receiver.requests() == []
        assert Counter.totals()["queued"] == 20
        consumer.state = Consumer.State.ACTIVE
        consumer.save()
        pump.membership.next_beat = 0
        pump_until(pump, all_finished)
    assert len(receiver.requests()) == 20
    assert set(Delivery.objects.values_list("attempt_count", flat=True)) == {1}


def test_410_disables_the_consumer_and_keeps_the_rest(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/status/410"), max_in_flight=1)
    publish(channel, b"1", b"2")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Consumer.objects.get().state == "disabled")
        pump_rounds(pump, 3)
    consumer.refresh_from_db()
    assert "410" in consumer.state_reason
    states = sorted(Delivery.objects.values_list("state", "reason"))
    assert states[0] == ("dead", "gone")
    assert states[1][0] in ("queued", "dead")  # one more may have been in flight


def test_max_in_flight_limits_open_requests(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/slow?ms=50"), max_in_flight=3)
    publish(channel, *[b"x"] * 12)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    assert receiver.max_concurrency <= 3
    assert len(receiver.requests()) == 12


@pytest.mark.seed("S0-75")
def test_a_rate_limit_holds(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"), rate_per_second=20, rate_burst=1)
    publish(channel, *[b"x"] * 15)
    started = time.monotonic()
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    times = sorted(request.at for request in receiver.requests())
    assert len(times) == 15
    for number, at in enumerate(times):
        assert at - started > number / 20 - 0.01  # a busy machine can only be later


def test_an_unreadable_body_is_dead_and_says_so(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    publish(channel, b"secret")
    MessageBody.objects.all().delete()
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.reason) == ("dead", "unreadable")
    assert receiver.requests() == []


def test_a_delivery_that_cannot_be_signed_waits_uncharged(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/ok"))
    healthy = make_consumer(channel, receiver.url("/healthy"))
    strange = Keyring.from_texts([generate_key()]).encrypt(b"x" * 32, b"another installation")
    consumer.secrets.update(sealed=strange)
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: healthy.deliveries.filter(state="delivered").exists())
        pump.next_poll = 0.0
        pump.round()
    delivery = consumer.deliveries.get()
    assert (delivery.state, delivery.attempt_count) == ("queued", 0)


def test_a_consumer_registered_before_the_message_is_never_missed(receiver: Receiver) -> None:
    channel = make_channel()
    with pumping.pumping() as pump:
        pump.round()
        make_consumer(channel, receiver.url("/ok"))
        publish(channel, b"x")
        pump_until(pump, all_finished)
    assert len(receiver.requests()) == 1


def test_a_channel_without_consumers_keeps_the_message() -> None:
    channel = make_channel()
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Message.objects.get().state == "dispatched")
    assert Message.objects.get().consumer_count == 0


def test_event_types_filter(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/orders"), event_types=["order.*"])
    make_consumer(channel, receiver.url("/all"))
    publish(channel, b"1", event_type="order.created")
    publish(channel, b"2", event_type="invoice.paid")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    heard = sorted((request.path, request.body) for request in receiver.requests())
    assert heard == [("/all", b"1"), ("/all", b"2"), ("/orders", b"1")]


def test_a_stopping_pump_releases_open_requests_uncharged(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/hang"))
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: bool(pump.open))
        pump.drain(0.05)
        delivery = Delivery.objects.get()
        assert (delivery.state, delivery.reason) == ("queued", "interrupted")
        assert (delivery.failure_count, delivery.attempt_count) == (0, 1)
        assert Counter.totals() == pumping.recounted()


def test_two_pumps_share_the_consumers() -> None:
    channel = make_channel()
    made = [make_consumer(channel, "http://127.0.0.1:9/") for _ in range(30)]
    with pumping.pumping() as one, pumping.pumping() as other:
        assert len(registration.living()) == 2
        one.assignment.refresh()
        other.assignment.refresh()
        mine, theirs = set(one.assignment.queues), set(other.assignment.queues)
        assert mine | theirs == {consumer.id for consumer in made}
        assert not mine & theirs
        assert min(len(mine), len(theirs)) >= 5


def test_a_new_consumer_does_not_wait_for_the_next_heartbeat(
    receiver: Receiver,
) -> None:
    channel = make_channel()
    with pumping.pumping() as pump:
        pump.round()
        pump.membership.next_beat = pump.next_poll = time.monotonic() + 5.0
        make_consumer(channel, receiver.url("/ok"))
        publish(channel, b"x")
        pump.accepted_hint = True
        while not receiver.requests():
            pump.round()
            assert time.monotonic() < pump.membership.next_beat
