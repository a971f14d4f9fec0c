"""``manage.py delete_channel``: asks first, then deletes all of one channel and no other."""

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Model

from channels_app.models import (
    AuditEntry,
    Channel,
    Consumer,
    ConsumerSecret,
    EventType,
    Message,
    MessageBody,
)
from delivery.maintenance import channel_erasure
from delivery.management.commands import delete_channel
from delivery.models import Attempt, ConsumerHealth, Counter, Delivery
from tests.support.factories import (
    AttemptFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    EventTypeFactory,
    MessageFactory,
)

pytestmark = pytest.mark.django_db

KINDS: tuple[type[Model], ...] = (
    Channel,
    EventType,
    Consumer,
    ConsumerSecret,
    ConsumerHealth,
    Message,
    MessageBody,
    Delivery,
    Attempt,
    Counter,
)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_channel, "CHECK_S", 0.0)


def make_channel(slug: str, messages: int = 3) -> Channel:
    """Create a channel whose messages are delivered to one consumer and queued for another."""
    channel = ChannelFactory.create(slug=slug)
    EventTypeFactory.create(channel=channel)
    consumers = ConsumerFactory.create_batch(2, channel=channel)
    for consumer in consumers:
        ConsumerHealth.objects.create(consumer=consumer)
    for _ in range(messages):
        make_message(channel, consumers)
    return channel


def make_message(channel: Channel, consumers: list[Consumer]) -> None:
    message = MessageFactory.create(channel=channel)
    for consumer, is_delivered in zip(consumers, (True, False), strict=True):
        delivery = DeliveryFactory.create(
            message=message, consumer=consumer, channel=channel, delivered=is_delivered
        )
        AttemptFactory.create(delivery=delivery)


def delete(slug: str, **options: Any) -> str:
    out = StringIO()
    call_command("delete_channel", slug, stdout=out, **({"force": True} | options))
    return out.getvalue()


@pytest.mark.trap("a consumer that cannot be deleted")
def test_delete_channel_deletes_only_the_channels_rows() -> None:
    make_channel("kept")
    kept = {kind: set(kind._default_manager.values_list("pk", flat=True)) for kind in KINDS}
    make_channel("orders")

    said = delete("orders", yes_delete="orders")

    assert "Channel orders is deleted, with 9 rows." in said
    left = {kind: set(kind._default_manager.values_list("pk", flat=True)) for kind in KINDS}
    assert left == kept


def test_delete_channel_shows_the_counts_first() -> None:
    make_channel("orders")

    said = delete("orders", dry_run=True)

    assert "2 consumers\n  1 event type\n  3 messages\n  6 deliveries\n" in said
    assert "3 deliveries not sent yet will never be sent." in said
    assert Message.objects.count() == 3
    assert Consumer.objects.filter(state="active").count() == 2


@pytest.mark.trap("a channel deleted with its backlog")
def test_a_backlog_is_deleted_only_with_force() -> None:
    channel = make_channel("orders")

    with pytest.raises(CommandError, match=r"^Nothing was changed: 3 deliveries .* Add --force"):
        delete("orders", yes_delete="orders", force=False)

    assert Delivery.objects.count() == 6
    assert Consumer.objects.filter(state="active").count() == 2
    Counter.objects.filter(state="queued").update(count=0)
    Delivery.objects.filter(channel=channel, state="queued").delete()
    delete("orders", yes_delete="orders", force=False)
    assert not Channel.objects.exists()


def test_delete_channel_is_audited() -> None:
    make_channel("orders")

    delete("orders", yes_delete="orders", reason="closed shop")

    entries = AuditEntry.objects.filter(target="channel:orders").order_by("id")
    assert [entry.action for entry in entries] == ["channel.delete", "channel.deleted"]
    assert entries[0].reason == "closed shop"
    assert entries[0].actor.startswith("command:")
    assert entries[0].before == {
        "consumers": 2,
        "event_types": 1,
        "schedules": 0,
        "messages": 3,
        "deliveries": 6,
        "waiting": 3,
    }


def test_sending_stops_before_the_first_row_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_channel("orders")
    real = channel_erasure.rows
    seen: list[tuple[bool, set[str], int]] = []

    def rows(channel: Channel) -> Iterator[int]:
        states = set(Consumer.objects.values_list("state", flat=True))
        paused = Channel.objects.get().paused
        seen.append((paused, states, Delivery.objects.count()))
        return real(channel)

    monkeypatch.setattr(channel_erasure, "rows", rows)

    delete("orders", yes_delete="orders")

    assert seen == [(True, {"retired"}, 6)]


def test_without_the_right_name_nothing_happens() -> None:
    make_channel("orders")

    for answer in (None, "order", ""):
        with pytest.raises(CommandError, match="Nothing was changed"):
            delete("orders", yes_delete=answer)

    assert Delivery.objects.count() == 6
    assert Consumer.objects.filter(state="active").count() == 2


def test_an_unknown_channel_is_reported_with_the_existing_ones() -> None:
    make_channel("orders", messages=0)

    with pytest.raises(CommandError, match=r"no channel 'order'. There are: orders\."):
        delete("order", yes_delete="order")


def test_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_erasure, "BATCH", 2)
    make_channel("orders", messages=5)

    delete("orders", yes_delete="orders")

    assert not Message.objects.exists()
    assert not Attempt.objects.exists()


def test_messages_published_during_the_deletion_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = make_channel("orders")
    real = channel_erasure.finish
    late = [True, False]

    def finish(*args: Any, **kwargs: Any) -> bool:
        if late.pop(0):
            make_message(channel, list(Consumer.objects.filter(channel=channel)))
        return real(*args, **kwargs)

    monkeypatch.setattr(channel_erasure, "finish", finish)

    delete("orders", yes_delete="orders")

    assert late == []
    assert not Message.objects.exists()
    assert not Delivery.objects.exists()


def test_messages_published_after_the_deletion_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = make_channel("orders")
    consumers = list(Consumer.objects.filter(channel=channel))
    channel_id = channel.id
    real = channel_erasure.finish

    def finish(*args: Any, **kwargs: Any) -> bool:
        done = real(*args, **kwargs)
        channel.id = channel_id
        make_message(channel, consumers)
        return done

    monkeypatch.setattr(channel_erasure, "finish", finish)

    delete("orders", yes_delete="orders")

    assert not Message.objects.exists()
    assert not Delivery.objects.exists()
