"""Cancel and reschedule: only queued deliveries, with correct counters and an audit entry."""

from datetime import timedelta
from typing import Any

import pytest

from channels_app.core import http, times
from channels_app.core.errors import Conflict, Invalid, NotFound, PreconditionFailed
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, Message, new_id
from channels_app.registry.cache import config_cache
from delivery import replay
from delivery.models import Attempt, Delivery
from delivery.queue import cancel, claim, fanout, reschedule
from delivery.queue.claim import ClaimRequest
from tests.support.counts import assert_counters_are_true, make_deliveries, make_messages
from tests.support.factories import (
    ConsumerFactory,
    DeliveryFactory,
    MessageFactory,
    ProducerFactory,
)
from tests.support.principals import acting

pytestmark = pytest.mark.django_db
BOB = acting("key:bob", "wrong amount")


def take_back(message: Message, **options: Any) -> cancel.Cancelled:
    return cancel.cancel_message(message.id, BOB, now=clock.now(), **options)


def reload(row: Delivery) -> Delivery:
    return Delivery.objects.get(id=row.id)


# -- one delivery ------------------------------------------------------------------------------


@pytest.mark.parametrize("traits", [{}, {"retrying": True}])
def test_a_queued_delivery_can_be_cancelled(traits: dict[str, bool]) -> None:
    row = DeliveryFactory.create(**traits)
    now = clock.now()

    after = cancel.cancel_one(row.id, BOB, now=now)

    assert (after.state, after.reason) == ("cancelled", "cancelled")
    assert (after.due_at, after.finished_at) == (None, now)
    assert after.version == row.version + 1
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.reason) == (
        "key:bob",
        "delivery.cancel",
        "wrong amount",
    )
    assert (entry.before, entry.after) == ({"state": "queued"}, {"state": "cancelled"})
    assert_counters_are_true()


@pytest.mark.parametrize("trait", ["in_flight", "delivered", "dead", "cancelled"])
def test_only_a_queued_delivery_can_be_cancelled(trait: str) -> None:
    row = DeliveryFactory.create(**{trait: True})

    with pytest.raises(Conflict, match="only a queued one"):
        cancel.cancel_one(row.id, BOB, now=clock.now())
    assert reload(row).version == row.version
    assert not AuditEntry.objects.exists()


def test_a_cancelled_delivery_is_not_claimed_and_can_be_replayed() -> None:
    row = DeliveryFactory.create()
    cancel.cancel_one(row.id, BOB, now=clock.now())
    wants = [ClaimRequest(row.consumer_id, 10, 1000, owner=1)]

    assert claim.claim(wants, now=clock.now(), slot=0).rows == []
    replay.replay_one(row.id, BOB, now=clock.now())
    assert len(claim.claim(wants, now=clock.now(), slot=0).rows) == 1
    with pytest.raises(NotFound):
        cancel.cancel_one(new_id(), BOB, now=clock.now())


# -- one message -------------------------------------------------------------------------------


def test_a_cancelled_message_is_never_fanned_out() -> None:
    consumer = ConsumerFactory.create()
    message = MessageFactory.create(channel=consumer.channel)

    done = take_back(message)

    assert (done.message.state, done.message.version) == ("cancelled", 2)
    assert done.cancelled_count == 0
    assert fanout.fan_out(10, 0).message_count == 0
    assert not Delivery.objects.exists()
    entry = AuditEntry.objects.get()
    assert entry.action == "message.cancel"
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["state"], entry.after["state"]) == ("accepted", "cancelled")


def test_cancelling_a_message_cancels_only_queued_deliveries() -> None:
    message = MessageFactory.create(dispatched=True)
    rows = {
        name: DeliveryFactory.create(
            message=message, consumer=ConsumerFactory.create(channel=message.channel), **traits
        )
        for name, traits in {
            "first": {},
            "retry": {"retrying": True},
            "open": {"in_flight": True},
            "done": {"delivered": True},
            "dead": {"dead": True},
        }.items()
    }
    bystander = DeliveryFactory.create()

    done = take_back(message)

    assert done.cancelled_count == 2
    assert done.message.state == "dispatched"
    assert {name: reload(row).state for name, row in rows.items()} == {
        "first": "cancelled",
        "retry": "cancelled",
        "open": "in_flight",
        "done": "delivered",
        "dead": "dead",
    }
    assert reload(bystander).state == "queued"
    assert_counters_are_true()


def test_cancelling_twice_is_idempotent_and_audited_once() -> None:
    row = DeliveryFactory.create()

    assert take_back(row.message).cancelled_count == 1
    again = take_back(row.message)

    assert Consumer.objects.get().version == row.consumer.version
    assert (again.cancelled_count, again.message.version) == (0, 2)
    assert AuditEntry.objects.count() == 1


def test_a_retry_queued_after_a_cancellation_is_cancelled_by_the_next() -> None:
    row = DeliveryFactory.create(in_flight=True)
    take_back(row.message)
    Delivery.objects.filter(id=row.id).update(state="queued", lease_owner=None)

    assert take_back(row.message).cancelled_count == 1


def test_a_cancelled_message_is_not_backfilled() -> None:
    early = DeliveryFactory.create(delivered=True)
    late = ConsumerFactory.create(channel=early.channel)
    (open_one,) = make_messages(late, 1)
    take_back(early.message)

    wanted = replay.parse({}, kind="missing").within(late.channel.slug, late.client_id)
    job = replay.create(wanted, [late], BOB, now=clock.now())
    assert job.matched_count == 1
    replay.run_due(clock.now(), 0)

    assert list(Delivery.objects.filter(consumer=late).values_list("message_id", flat=True)) == [
        open_one.id
    ]


def test_cancelling_an_outdated_version_is_refused() -> None:
    row = DeliveryFactory.create()

    with pytest.raises(PreconditionFailed):
        take_back(row.message, condition=http.parse('"7"'))
    assert take_back(row.message, condition=http.parse('"1"')).cancelled_count == 1
    with pytest.raises(NotFound):
        cancel.cancel_message(new_id(), BOB, now=clock.now())


# -- a removed consumer ------------------------------------------------------------------------


def test_the_backlog_of_a_retired_consumer_is_cancelled_in_batches() -> None:
    removed, active = ConsumerFactory.create(retired=True), ConsumerFactory.create()
    make_deliveries(removed, 25, state="queued", reason="accepted", due_at=clock.now())
    make_deliveries(active, 3, state="queued", reason="accepted", due_at=clock.now())
    DeliveryFactory.create(consumer=removed, delivered=True)

    sizes = [cancel.cancel_retired(clock.now(), 3, 10) for _ in range(4)]

    assert sizes == [10, 10, 5, 0]
    assert set(
        Delivery.objects.filter(consumer=removed).values_list("state", "reason").distinct()
    ) == {("cancelled", "retired"), ("delivered", "delivered")}
    assert Delivery.objects.filter(consumer=active, state="queued").count() == 3
    assert_counters_are_true()


def test_leased_deliveries_of_a_retired_consumer_end() -> None:
    removed, active = ConsumerFactory.create(retired=True), ConsumerFactory.create()
    past = clock.now() - timedelta(seconds=1)
    lapsed = DeliveryFactory.create(consumer=removed, in_flight=True, due_at=past)
    waiting = DeliveryFactory.create(consumer=removed, state="awaiting_ack", due_at=past)
    held = DeliveryFactory.create(consumer=removed, in_flight=True)
    others = DeliveryFactory.create(consumer=active, in_flight=True, due_at=past)

    assert cancel.cancel_retired(clock.now(), 0, 10) == 2
    assert (reload(lapsed).reason, reload(waiting).reason) == ("lease_expired", "ack_timeout")
    assert_counters_are_true()
    assert cancel.cancel_retired(clock.now(), 0, 10) == 2
    assert cancel.cancel_retired(clock.now(), 0, 10) == 0

    for row in (lapsed, waiting):
        assert (reload(row).state, reload(row).reason) == ("cancelled", "retired")
    assert (reload(held).state, reload(others).state) == ("in_flight", "in_flight")
    attempt = Attempt.objects.get()
    assert (attempt.delivery_id, attempt.number, attempt.outcome) == (lapsed.id, 1, "lease_expired")
    assert_counters_are_true()


# -- reschedule --------------------------------------------------------------------------------


def move(message: Message, **changes: Any) -> Message:
    return reschedule.reschedule(message.id, BOB, now=clock.now(), **changes)


def test_moving_a_message_moves_its_waiting_deliveries() -> None:
    message = MessageFactory.create(dispatched=True)
    first, retry, done = (
        DeliveryFactory.create(
            message=message, consumer=ConsumerFactory.create(channel=message.channel), **traits
        )
        for traits in ({}, {"retrying": True}, {"delivered": True})
    )
    later = times.floor_ms(clock.now()) + timedelta(hours=1)

    moved = move(message, priority=9, due_at=later)

    assert (moved.priority, moved.due_at, moved.version) == (9, later, 2)
    for row in (first, retry):
        assert (reload(row).priority, reload(row).due_at) == (9, later)
        assert reload(row).version == row.version + 1
    assert (reload(done).priority, reload(done).due_at) == (4, None)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.before and entry.before["priority"]) == ("message.reschedule", 4)
    assert entry.after is not None
    assert entry.after["priority"] == 9


def test_a_moved_message_is_fanned_out_with_its_new_due_time() -> None:
    consumer = ConsumerFactory.create()
    message = MessageFactory.create(channel=consumer.channel)
    later = times.floor_ms(clock.now()) + timedelta(hours=1)
    config_cache.refresh(now=True)

    move(message, priority=0, due_at=later)
    fanout.fan_out(10, 0)

    row = Delivery.objects.get()
    assert (row.priority, row.due_at) == (0, later)


def test_a_move_into_the_past_means_now() -> None:
    row = DeliveryFactory.create(retrying=True)
    before = clock.now()

    move(row.message, due_at=before - timedelta(days=1))

    due_at = reload(row).due_at
    assert due_at is not None
    assert times.floor_ms(before) <= due_at <= clock.now()


@pytest.mark.parametrize(
    ("traits", "code"),
    [
        ({"in_flight": True}, "in_flight"),
        ({"state": "awaiting_ack"}, "in_flight"),
        ({"delivered": True}, "nothing_waits"),
        ({"dead": True}, "nothing_waits"),
    ],
)
def test_deliveries_in_flight_or_finished_are_not_moved(traits: dict[str, Any], code: str) -> None:
    row = DeliveryFactory.create(**traits)

    with pytest.raises(Conflict) as caught:
        move(row.message, priority=5)
    assert caught.value.code == code
    assert Message.objects.get().version == 1


def test_a_delivery_in_flight_prevents_moving_the_message() -> None:
    waiting = DeliveryFactory.create()
    DeliveryFactory.create(
        message=waiting.message,
        consumer=ConsumerFactory.create(channel=waiting.channel),
        in_flight=True,
    )

    with pytest.raises(Conflict, match="being delivered"):
        move(waiting.message, priority=5)
    assert reload(waiting).priority == 4


def test_a_move_stays_within_its_limits() -> None:
    producer = ProducerFactory.create(max_priority=6)
    now = clock.now()
    message = MessageFactory.create(producer=producer, expires_at=now + timedelta(hours=1))

    assert move(message, priority=6).priority == 6
    with pytest.raises(Invalid, match="up to 6"):
        move(message, priority=7)
    with pytest.raises(Invalid, match="expires"):
        move(message, due_at=now + timedelta(hours=1))
    with pytest.raises(PreconditionFailed):
        move(message, priority=1, condition=http.parse('"1"'))
    with pytest.raises(NotFound):
        reschedule.reschedule(new_id(), BOB, now=now, priority=1)
    take_back(message)
    with pytest.raises(Conflict, match="cancelled"):
        move(message, priority=1)
