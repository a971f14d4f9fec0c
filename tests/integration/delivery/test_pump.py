"""The path of a message through a real pump, a real consumer and the real tables."""

import time
from datetime import timedelta

import pytest
from standardwebhooks import Webhook

from channels_app.core import ids
from channels_app.core.encryption import Keyring, generate_key
from channels_app.database import clock
from channels_app.models import Consumer, MessageBody
from delivery.models import Counter, Delivery
from delivery.processes import registration
from tests.support import pumping
from tests.support.pumping import (
    all_finished,
    brisk,
    make_channel,
    make_consumer,
    publish,
    pump_rounds,
    pump_until,
)
from tests.support.receiver import Receiver
from tests.support.waiting import until

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
    publish(channel, *[b"high"] * 20, priority=9)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    bodies = [request.body for request in receiver.requests()]
    assert bodies.index(b"low") < 15


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


@pytest.mark.seed("S0-75")
def test_a_rate_limit_holds(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"), rate_per_second=20, rate_burst=1)
    publish(channel, *[b"x"] * 8)
    started = time.monotonic()
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    times = sorted(request.at for request in receiver.requests())
    assert len(times) == 8
    for number, at in enumerate(times):
        # A busy machine can only be later. Clocks are corrected by milliseconds.
        assert at - started > (number - 1) / 20


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
        pump_rounds(pump, 1)
    delivery = consumer.deliveries.get()
    assert (delivery.state, delivery.attempt_count) == ("queued", 0)


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


def test_two_pumps_share_the_consumers_and_one_that_leaves_hands_its_own_over() -> None:
    channel = make_channel()
    made = {make_consumer(channel, "http://127.0.0.1:9/").id for _ in range(20)}
    with pumping.pumping() as one, pumping.pumping() as other:
        assert len(registration.living()) == 2
        one.assignment.refresh()
        other.assignment.refresh()
        mine, theirs = set(one.assignment.queues), set(other.assignment.queues)
        assert mine | theirs == made
        assert not mine & theirs
        assert min(len(mine), len(theirs)) >= 2
        other.drain(0.0)
        one.assignment.refresh()
        assert set(one.assignment.queues) == made


def test_a_new_consumer_does_not_wait_for_the_next_heartbeat(receiver: Receiver) -> None:
    channel = make_channel()
    with pumping.pumping() as pump, brisk(pump):
        pump.round()
        pump.membership.next_beat = pump.next_poll = time.monotonic() + 3600.0
        make_consumer(channel, receiver.url("/ok"))
        publish(channel, b"x")
        pump.accepted_hint = True

        def is_sent() -> bool:
            pump.round()
            return bool(receiver.requests())

        until(is_sent, "it gets the message")
