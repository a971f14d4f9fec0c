"""The broker admits messages that the pipeline restores from the lake."""

import json
from contextlib import suppress
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from standardwebhooks.webhooks import Webhook

from channels_app.core import ids, times
from channels_app.core.errors import Conflict, NotFound
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, Message, MessageBody
from delivery.maintenance import sweeps
from delivery.models import Counter, Delivery, Replay, Restored, RestoredMessage
from delivery.queue import fanout
from delivery.replay import restore
from tests.support.counts import assert_counters_are_true
from tests.support.ordering import end, take
from tests.support.principals import acting
from tests.support.pumping import (
    SECRET,
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    pumping,
)
from tests.support.receiver import Receiver
from tests.support.restoring import MESSAGE_COLUMNS, bring, take_away

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"
OPERATOR = acting("user:olga", "enough")


def lived(number: int = 3, url: str = NOWHERE) -> Consumer:
    """Publish messages and record them as delivered."""
    consumer = make_consumer(make_channel(), url)
    bodies = [b'{"number": %d}' % place for place in range(number)]
    publish(consumer.channel, *bodies, event_type="order.paid")
    fanout.fan_out(100, 0)
    now = clock.now()
    assert end(take(consumer, now), "delivered", now) == number
    return consumer


def archived(message: Message) -> dict[str, Any]:
    """Return the archived row of a message that is still here."""
    row = {name: getattr(message, name) for name in MESSAGE_COLUMNS}
    return row | {"message_id": message.id}


def admit(now: datetime | None = None) -> int:
    return sum(restore.run_each(now or clock.now(), 0))


def keys() -> list[int]:
    return list(Message.objects.order_by("id").values_list("id", flat=True))


def books_are_in_order() -> None:
    """Check that reconciliation finds nothing, except late deliveries, since no pump runs."""
    assert_counters_are_true()
    out = StringIO()
    with suppress(SystemExit):
        call_command("reconcile", "--json", "--grace", "0s", stdout=out)
    findings = json.loads(out.getvalue())["findings"]
    assert [it for it in findings if it["check"] != "late"] == []


def test_a_restored_message_is_delivered_unchanged(receiver: Receiver) -> None:
    consumer = lived(url=receiver.url("/hook"))
    mine = keys()
    bodies = [b'{"number": 0}', b'{"number": 1}', b'{"number": 2}']
    before = zip([ids.to_public(ids.MESSAGE, key) for key in mine], bodies, strict=True)
    row = bring(consumer, take_away(mine))

    assert admit() == 3
    assert admit() == 0
    row.refresh_from_db()
    assert (row.state, row.queued_count, row.skipped_count) == ("finished", 3, 0)
    assert keys() == mine
    with pumping() as pump:
        pump_until(pump, all_finished)
    again = receiver.wait_for(3, path="/hook")
    assert sorted((it.header("webhook-id"), it.body) for it in again) == sorted(before)
    for request in again:
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        headers = {name: request.header(name) or "" for name in names}
        Webhook(SECRET).verify(request.body.decode(), headers)
    assert set(RestoredMessage.objects.values_list("message_id", flat=True)) == set(mine)
    (replay,) = Replay.objects.all()
    assert set(Delivery.objects.values_list("replay_id", flat=True)) == {replay.id}
    actions = AuditEntry.objects.filter(target=f"replay:{replay}").order_by("id")
    assert list(actions.values_list("action", "actor", "reason")) == [
        ("replay.restore", "olga on the command line", "lost"),
        ("replay.finished", "broker", ""),
    ]
    assert (row.low, row.high) == (mine[0], mine[-1])
    made = sorted(Delivery.objects.values_list("id", flat=True))
    assert (row.first_key, row.last_key) == (made[0], made[-1])
    books_are_in_order()


def test_a_restore_replays_existing_messages_but_not_open_ones() -> None:
    consumer = lived()
    here, away, open_ = keys()
    rows = take_away([away])
    rows += [archived(it) for it in Message.objects.filter(id__in=[here, open_])]
    now = clock.now()
    moved = Delivery.objects.filter(message_id=open_)
    moved.update(state="queued", due_at=now + timedelta(hours=1), finished_at=None)
    Counter.add({(consumer.id, "delivered"): -1, (consumer.id, "queued"): 1}, 0)
    row = bring(consumer, rows)
    assert admit() == 3
    row.refresh_from_db()
    assert (row.queued_count, row.skipped_count) == (2, 1)
    (replay,) = Replay.objects.all()
    found = dict(Delivery.objects.values_list("message_id", "replay_id"))
    assert found == {here: replay.id, away: replay.id, open_: None}
    assert set(RestoredMessage.objects.values_list("message_id", flat=True)) == {away}
    books_are_in_order()


def test_a_restore_counts_late_consumers() -> None:
    consumer = lived()
    mine = keys()
    late = make_consumer(consumer.channel, NOWHERE)
    rows = take_away(mine[:2])
    rows.append(archived(Message.objects.get(id=mine[2])))
    bring(late, [row | {"is_first": True} for row in rows])
    assert admit() == 3
    assert set(Message.objects.values_list("consumer_count", flat=True)) == {2}
    books_are_in_order()


def test_a_restore_skips_messages_that_cannot_be_sent() -> None:
    consumer = lived(4)
    bare, expired, cancelled, good = keys()
    soon = clock.now() + timedelta(milliseconds=1)
    rows = take_away([bare, expired, good])
    rows[0] |= {"body": None}
    rows[1] |= {"expires_at": soon}
    rows.append(archived(Message.objects.get(id=cancelled)))
    Message.objects.update(state="cancelled")
    row = bring(consumer, rows)
    assert admit(clock.now() + timedelta(seconds=1)) == 4
    row.refresh_from_db()
    assert (row.queued_count, row.skipped_count) == (1, 3)
    assert set(keys()) == {cancelled, good}


def test_a_restore_with_a_rate_queues_a_few_seconds_ahead() -> None:
    consumer = lived(30)
    row = bring(consumer, take_away(keys()), rate_per_second=2.0)
    now = times.floor_ms(clock.now())
    assert admit(now) == 11
    assert admit(now) == 0
    assert admit(now + timedelta(seconds=2)) == 4
    restore.cancel(row.id, OPERATOR, now=clock.now())
    assert admit(now + timedelta(minutes=1)) == 0
    row.refresh_from_db()
    assert (row.state, row.queued_count) == ("cancelled", 15)
    due = sorted(row.due_at for row in Delivery.objects.all() if row.due_at)
    assert due[-1] - due[0] == timedelta(seconds=7)
    assert sum(restore.forget()) == 15
    assert not Restored.objects.exists()
    with pytest.raises(Conflict):
        restore.cancel(row.id, OPERATOR, now=clock.now())
    with pytest.raises(NotFound):
        restore.cancel(row.id + 1, OPERATOR, now=clock.now())


def test_a_restore_uses_small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "BATCH", 2)
    consumer = lived(5)
    bring(consumer, take_away(keys()))
    assert list(restore.run_each(clock.now(), 0)) == [2, 2, 1, 0]


def test_bodies_of_unknown_keys_and_removed_consumers_are_refused() -> None:
    consumer = lived()
    row = bring(consumer, take_away(keys()), key_ids=["0badc0de"])
    assert admit() == 0
    row.refresh_from_db()
    assert row.state == "refused"
    assert "0badc0de" in row.error
    Consumer.objects.filter(id=consumer.id).update(state="retired")
    other = bring(consumer, [])
    assert admit() == 0
    other.refresh_from_db()
    assert (other.state, other.error) == ("refused", restore.GONE)
    assert not Message.objects.exists()


def test_restored_messages_are_deleted_when_finished() -> None:
    consumer = lived()
    mine = keys()
    bring(consumer, take_away(mine))
    admit()
    assert sum(restore.forget()) == 0
    Delivery.objects.filter(message_id=mine[0]).delete()
    Message.objects.filter(id=mine[1])._raw_delete("default")
    assert sum(restore.forget()) == 1
    assert keys() == mine[2:]
    assert list(RestoredMessage.objects.values_list("message_id", flat=True)) == mine[2:]
    assert not MessageBody.objects.filter(message_id=mine[0]).exists()


def test_two_restores_of_a_message_store_it_once() -> None:
    consumer = lived()
    other = make_consumer(consumer.channel, NOWHERE)
    rows = take_away(keys())
    bring(consumer, rows)
    bring(other, [row | {"is_first": True} for row in rows])
    assert admit() == 6
    assert Message.objects.count() == RestoredMessage.objects.count() == 3
    assert Delivery.objects.count() == 6
    books_are_in_order()


def test_sweeps_run_restores() -> None:
    names = {sweep.name for sweep in sweeps.SWEEPS}
    assert {"restores", "old restores"} <= names


def test_a_restore_waits_for_the_fan_out_of_a_message() -> None:
    consumer = lived(1)
    (message_id,) = publish(consumer.channel, b"new")
    bring(consumer, [archived(Message.objects.get(id=message_id))])
    assert admit() == 1
    assert not Delivery.objects.filter(message_id=message_id).exists()
    fanout.fan_out(10, 0)
    assert Delivery.objects.filter(message_id=message_id).count() == 1
