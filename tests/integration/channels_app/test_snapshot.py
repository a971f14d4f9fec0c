"""A snapshot of the configuration that was read after a change equals one that is read anew."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from channels_app import conf as conf_module
from channels_app.models import Channel, Consumer, EventType
from channels_app.registry import snapshot
from channels_app.registry.snapshot import ChannelConfig, Snapshot
from delivery.maintenance import channel_erasure
from tests.support.factories import ChannelFactory, ConsumerFactory, ProducerFactory, TeamFactory
from tests.support.principals import acting
from tests.support.snapshot import undone

pytestmark = pytest.mark.django_db


@pytest.fixture
def tables() -> None:
    """Three channels with three consumers and two event types each."""
    for number in range(3):
        channel = ChannelFactory.create(slug=f"shop-{number}")
        for client_id in ("first", "second", "third"):
            ConsumerFactory.create(channel=channel, client_id=client_id)
        for name in ("order.made", "order.paid"):
            EventType.objects.create(channel=channel, name=name, schema={"type": "object"})


def channel() -> Channel:
    return Channel.objects.get(slug="shop-1")


def consumer() -> Consumer:
    return Consumer.objects.get(channel=channel(), client_id="second")


def event_type() -> EventType:
    return EventType.objects.get(channel=channel(), name="order.paid")


def change(row: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(row, name, value)
    row.save()


def add_a_team_with_a_limit() -> None:
    ProducerFactory.create(team=TeamFactory.create(max_waiting_messages=5))


CHANGES: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "a new channel": lambda: ChannelFactory.create(),
    "a new consumer": lambda: ConsumerFactory.create(channel=channel()),
    "a new event type": lambda: EventType.objects.create(
        channel=channel(), name="order.sent", schema={"type": "array"}
    ),
    "a channel's setting": lambda: change(channel(), default_retry=[1, 2], paused=True),
    "a consumer's setting": lambda: change(consumer(), event_types=["order.*"]),
    "a paused consumer": lambda: change(consumer(), state="paused"),
    "a retired consumer": lambda: change(consumer(), state="retired"),
    "a schema": lambda: change(event_type(), schema={"type": "string"}),
    "a removed schema": lambda: change(event_type(), schema=None),
    "a deleted event type": lambda: event_type().delete(),
    "a deleted consumer": lambda: consumer().delete(),
    "a deleted channel": lambda: Channel.objects.get(pk=ChannelFactory.create().pk).delete(),
    "a limit of a team": add_a_team_with_a_limit,
}


def contents(taken: Snapshot) -> dict[str, Any]:
    """Return everything in a snapshot but its channels' search trees."""

    def plain(view: ChannelConfig) -> dict[str, Any]:
        values = {field.name: getattr(view, field.name) for field in dataclasses.fields(view)}
        return values | {"subscriptions": view.consumers, "wanting": view.wanting("order.paid")}

    values = {field.name: getattr(taken, field.name) for field in dataclasses.fields(taken)}
    for name in ("channels", "channels_by_id"):
        values[name] = {key: plain(view) for key, view in values[name].items()}
    return values


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_it_equals_one_that_is_read_anew(tables: None, name: str) -> None:
    former = Snapshot.take()
    CHANGES[name]()
    assert contents(Snapshot.take(former)) == contents(Snapshot.take())


def test_after_many_changes_it_equals_one_that_is_read_anew(tables: None) -> None:
    taken = Snapshot.take()
    removals = [name for name in CHANGES if "deleted" in name or "retired" in name]
    for name in [*(name for name in CHANGES if name not in removals), "a retired consumer"]:
        CHANGES[name]()
        taken = Snapshot.take(taken)
        assert contents(taken) == contents(Snapshot.take()), name


def test_what_did_not_change_is_not_read_again(tables: None) -> None:
    former = Snapshot.take()
    changed = consumer()
    change(changed, timeout_ms=1234)
    taken = Snapshot.take(former)

    assert taken.consumers[changed.pk].timeout_ms == 1234
    for view in former.consumers.values():
        assert (taken.consumers[view.id] is view) == (view.id != changed.pk)
    for slug in ("shop-0", "shop-2"):
        assert taken.channels[slug] is former.channels[slug]
    assert taken.channels["shop-1"].schemas is former.channels["shop-1"].schemas


def test_a_channels_consumers_follow_its_settings(tables: None) -> None:
    former = Snapshot.take()
    change(channel(), paused=True)
    views = Snapshot.take(former).channels["shop-1"].consumers

    assert {view.halted for view in views} == {True}


@pytest.mark.parametrize("most", [1, 2])
def test_any_number_of_changes_is_found(
    tables: None, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(snapshot, "MAX_STALE", most)
    former = Snapshot.take()
    for row in Consumer.objects.exclude(channel__slug="shop-2"):
        change(row, timeout_ms=1234)

    assert contents(Snapshot.take(former)) == contents(Snapshot.take())


def test_other_defaults_change_everything(tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    former = Snapshot.take()
    other = dataclasses.replace(conf_module.conf(), timeout_ms=4321)
    monkeypatch.setattr(snapshot, "conf", lambda: other)

    assert {view.timeout_ms for view in Snapshot.take(former).consumers.values()} == {4321}


def test_a_deleted_dead_letter_channel_is_not_kept(tables: None) -> None:
    target = Channel.objects.get(slug="shop-2")
    change(consumer(), dead_letter_channel=target)
    former = Snapshot.take()
    counted = channel_erasure.count_rows(target)
    channel_erasure.close(target, acting("system"), counted)
    assert channel_erasure.finish(target, acting("system"))

    assert Snapshot.take(former).dead_lettered == frozenset()


def test_a_channel_that_was_changed_before_its_deletion_is_closed(tables: None) -> None:
    stale = channel()
    change(channel(), retention_days=3)
    former = Snapshot.take()
    counted = channel_erasure.count_rows(stale)
    channel_erasure.close(stale, acting("system"), counted)

    assert Snapshot.take(former).channels["shop-1"].paused
    assert channel().retention_days == 3


def test_a_change_that_was_rolled_back_does_not_hide_the_next(tables: None) -> None:
    before = Snapshot.take()
    with undone():
        change(consumer(), timeout_ms=1111)
        within = Snapshot.take(before)
    change(consumer(), timeout_ms=2222)

    assert within.consumers[consumer().pk].timeout_ms == 1111
    assert Snapshot.take(within).consumers[consumer().pk].timeout_ms == 2222
