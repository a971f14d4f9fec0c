"""Dead-letter channels: each dead delivery is published once, with its origin (S0-77)."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from channels_app import failpoints
from channels_app.core import ids
from channels_app.core.encryption import generate_key
from channels_app.database import clock
from channels_app.models import Channel, Consumer, Message, MessageBody
from channels_app.registry import data_encryption
from delivery.acks import callbacks
from delivery.core.lifecycle import FREE_ATTEMPTS
from delivery.models import Counter, DeadLetter, Delivery
from delivery.queue import claim, dead_letters, release
from delivery.queue.claim import ClaimRequest
from tests.support import pumping
from tests.support.calling import Api
from tests.support.counts import assert_counters_are_true
from tests.support.factories import ChannelFactory, ProducerFactory, TeamFactory
from tests.support.keys import host
from tests.support.pulling import Worker, bring, lapse, row_of, waiting
from tests.support.pumping import make_channel, make_consumer, pump_until
from tests.support.receiver import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
URL = "http://127.0.0.1:9/"
CALLBACK = {"mode": "callback", "timeout_ms": 60_000, "on_timeout": "dead"}


@pytest.fixture
def dead(db: None) -> Channel:
    """A channel that receives dead letters."""
    return make_channel()


def forward() -> None:
    """Forward dead letters as the sweep does."""
    while dead_letters.forward():
        pass


def published(channel: Channel) -> list[tuple[bytes, dict[str, str]]]:
    """Return bodies and headers of a channel's messages, oldest first."""
    rows = Message.objects.filter(channel=channel).order_by("id")
    bodies = [MessageBody.objects.get(message=row) for row in rows]
    return [
        (
            data_encryption.decrypt_body(row.id, bytes(body.data), body.key_id),
            data_encryption.headers_of(row),
        )
        for row, body in zip(rows, bodies, strict=True)
    ]


def reject(consumer: Consumer) -> None:
    worker = Worker(consumer)
    (one,) = worker.receive()
    assert worker.say("nack", one["lease"])[0] == [one["lease"]]


def let_lapse(consumer: Consumer) -> None:
    assert Worker(consumer).receive()
    lapse(consumer)
    assert Worker(consumer).receive() == []


def let_lapse_while_paused(consumer: Consumer) -> None:
    assert Worker(consumer).receive()
    lapse(consumer)
    consumer.state = Consumer.State.PAUSED
    consumer.save()
    assert release.release_lapsed(now=clock.now(), slot=0) == 1


def wear_out(consumer: Consumer) -> None:
    Delivery.objects.update(interruption_count=FREE_ATTEMPTS)
    assert Worker(consumer).receive() == []


def _as_push(consumer: Consumer) -> Delivery:
    """Make the delivery a pushed one that waits for its acknowledgement."""
    consumer.mode, consumer.url, consumer.ack = "push", URL, CALLBACK
    consumer.save()
    due_at = clock.now() - timedelta(seconds=1)
    Delivery.objects.update(state="awaiting_ack", due_at=due_at, attempt_count=1)
    Counter.add({(consumer.id, "queued"): -1, (consumer.id, "awaiting_ack"): 1}, 0)
    return row_of(consumer)


def refuse_later(consumer: Consumer) -> None:
    row = _as_push(consumer)
    callbacks.acknowledge(row.id, ok=False, now=clock.now())


def say_nothing(consumer: Consumer) -> None:
    _as_push(consumer)
    claim.claim([ClaimRequest(consumer.id, 1, 1000, 1)], now=clock.now(), slot=0)


@pytest.mark.parametrize(
    ("die", "reason"),
    [
        (reject, "exhausted"),
        (let_lapse, "exhausted"),
        (let_lapse_while_paused, "exhausted"),
        (wear_out, "exhausted"),
        (refuse_later, "exhausted"),
        (say_nothing, "ack_timeout"),
    ],
)
def test_every_kind_of_dead_letter_is_published_once(
    dead: Channel, die: Callable[[Consumer], None], reason: str
) -> None:
    consumer = waiting(
        b"x", dead_letter_channel=dead, max_attempts=1, retry=[0], lapsed_leases="charged"
    )
    die(consumer)
    row = row_of(consumer)
    assert (row.state, row.reason) == ("dead", reason)

    forward()
    forward()

    ((body, headers),) = published(dead)
    assert body == b"x"
    assert headers == {
        "Hookstation-Dead-Letter-Channel": consumer.channel.slug,
        "Hookstation-Dead-Letter-Consumer": consumer.client_id,
        "Hookstation-Dead-Letter-Message": ids.to_public(ids.MESSAGE, row.message_id),
        "Hookstation-Dead-Letter-Reason": reason,
        "Hookstation-Dead-Letter-Attempts": str(row.attempt_count),
        "Hookstation-Dead-Letter-Hops": "1",
    }
    assert not DeadLetter.objects.exists()
    assert_counters_are_true()


def test_a_published_dead_letter_keeps_the_messages_fields(dead: Channel) -> None:
    consumer = waiting(dead_letter_channel=dead, max_attempts=1)
    producer = ProducerFactory.create()
    bring(
        consumer,
        b'{"n": 1}',
        content_type="application/json",
        event_type="order.created",
        ordering_key="customer-1",
        priority=7,
        headers={"X-Tenant": "acme"},
        idempotency_key="n-1",
    )
    Message.objects.update(producer=producer)
    reject(consumer)
    forward()

    copy = Message.objects.get(channel=dead)
    assert (copy.content_type, copy.event_type) == ("application/json", "order.created")
    assert (copy.ordering_key, copy.priority, copy.producer) == ("customer-1", 7, producer)
    ((_, headers),) = published(dead)
    assert headers["X-Tenant"] == "acme"


def test_without_a_dead_letter_channel_dead_letters_stay(dead: Channel) -> None:
    consumer = waiting(b"x", max_attempts=1)
    waiting(channel=dead, dead_letter_channel=make_channel())
    reject(consumer)
    assert not DeadLetter.objects.exists()


def test_a_replay_that_fails_again_is_published_again(dead: Channel) -> None:
    consumer = waiting(b"x", dead_letter_channel=dead, max_attempts=1)
    reject(consumer)
    forward()
    row = Delivery.objects.filter(consumer=consumer)
    row.update(state="queued", due_at=clock.now(), finished_at=None, failure_count=0)
    reject(consumer)
    forward()
    attempts = [headers["Hookstation-Dead-Letter-Attempts"] for _, headers in published(dead)]
    assert attempts == ["1", "2"]


def test_an_interrupted_dead_letter_publish_is_completed_once(
    dead: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = waiting(b"x", dead_letter_channel=dead, max_attempts=1)
    reject(consumer)

    def die(name: str) -> None:
        assert name != "in_forward", "dead"

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "reach", die)
        with pytest.raises(AssertionError, match="dead"):
            dead_letters.forward()
    assert published(dead) == []

    forward()
    assert len(published(dead)) == 1


def test_a_dead_letter_waits_for_its_missing_encryption_key(dead: Channel) -> None:
    old, new = generate_key(), generate_key()
    with host(old):
        consumer = waiting(b"x", dead_letter_channel=dead, max_attempts=1)
        reject(consumer)
    with host(new):
        forward()
        assert not Message.objects.filter(channel=dead).exists()
    with host(old):
        DeadLetter.objects.update(due_at=clock.now())
        forward()
        assert [body for body, _ in published(dead)] == [b"x"]


def test_a_dead_letter_with_a_changed_body_is_not_published(dead: Channel) -> None:
    consumer = waiting(b"x", dead_letter_channel=dead)
    MessageBody.objects.update(data=b"y")
    assert Worker(consumer).receive() == []
    assert row_of(consumer).state == "dead"
    forward()
    assert not Message.objects.filter(channel=dead).exists()
    assert not DeadLetter.objects.exists()


def test_a_message_passes_five_dead_letter_channels(dead: Channel) -> None:
    consumer = waiting(dead_letter_channel=dead, max_attempts=1)
    for hops in ("4", "5"):
        bring(consumer, b"x", headers={"Hookstation-Dead-Letter-Hops": hops})
        reject(consumer)
    forward()
    assert [headers["Hookstation-Dead-Letter-Hops"] for _, headers in published(dead)] == ["5"]
    assert not DeadLetter.objects.exists()


def test_a_push_consumer_gets_the_origin_of_a_dead_letter(
    dead: Channel, receiver: Receiver
) -> None:
    consumer = waiting(b"x", dead_letter_channel=dead, max_attempts=1)
    make_consumer(dead, receiver.url("/ok"))
    reject(consumer)
    forward()
    with pumping.pumping() as pump:
        pump_until(pump, lambda: bool(receiver.requests()))
    (request,) = receiver.requests()
    assert request.header("Hookstation-Dead-Letter-Channel") == consumer.channel.slug
    assert request.header("Hookstation-Dead-Letter-Reason") == "exhausted"


def registered(api: Api, channel: Channel, target: str | None, client_id: str = "one") -> Any:
    path = f"/channels/{channel.slug}/consumers/{client_id}"
    return api.call("PUT", path, {"mode": "pull", "dead_letter_channel": target})


def fault(answer: Any) -> str:
    """Return the error of the field."""
    assert answer.status_code == 422, answer.content
    (found,) = answer.json()["errors"]
    assert found["field"] == "dead_letter_channel"
    return str(found["detail"])


def test_a_cycle_of_dead_letter_channels_is_refused() -> None:
    api = Api(scopes=["admin"])
    chain = [ChannelFactory.create() for _ in range(7)]
    first, second, third = chain[:3]
    assert "lead back" in fault(registered(api, first, first.slug))
    assert registered(api, first, second.slug).status_code == 201
    assert registered(api, second, third.slug).status_code == 201
    for target in (first, second):
        assert "lead back" in fault(registered(api, third, target.slug))
    for channel, target in itertools.pairwise(chain[2:]):
        registered(api, channel, target.slug)
    assert "At most 5" in fault(registered(api, ChannelFactory.create(), first.slug))


def test_a_dead_letter_channel_needs_permission_to_publish() -> None:
    team = TeamFactory.create()
    origin, target = ChannelFactory.create(external=True), ChannelFactory.create(external=True)
    inner = ChannelFactory.create()
    both = Api(team=team, scopes=["register", "publish"])
    assert registered(both, origin, target.slug).status_code == 201
    for api, slug in (
        (Api(team=team, scopes=["register"]), target.slug),
        (both, inner.slug),
        (both, "nowhere"),
    ):
        assert "that you may publish on" in fault(registered(api, origin, slug, "two"))
    # The existing value is not a new request.
    weaker = Api(team=team, scopes=["register"])
    path = f"/channels/{origin.slug}/consumers/one"
    changed = weaker.patch(path, {"dead_letter_channel": target.slug, "description": "mine"})
    assert changed.status_code == 200
    assert changed.json()["dead_letter_channel"] == target.slug
    assert registered(weaker, origin, None).json()["dead_letter_channel"] is None


def test_a_deleted_dead_letter_channel_gets_nothing(dead: Channel) -> None:
    consumer = waiting(b"x", dead_letter_channel=dead, max_attempts=1)
    reject(consumer)
    dead.delete()
    forward()
    consumer.refresh_from_db()
    assert (consumer.dead_letter_channel, row_of(consumer).state) == (None, "dead")
    assert not DeadLetter.objects.exists()
