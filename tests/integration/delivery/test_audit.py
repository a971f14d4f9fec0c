"""Reconciliation: clean after normal operation, and a finding for every broken row."""

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import (
    Channel,
    ConfigVersion,
    Consumer,
    IdempotencyRecord,
    Message,
    MessageBody,
    new_id,
)
from delivery import replay
from delivery.maintenance import channel_erasure, reconciliation_scope, retention
from delivery.models import Attempt, ConsumerHealth, Counter, Delivery, PumpSlot
from delivery.queue import cancel, claim, fanout
from delivery.queue.claim import ClaimRequest
from tests.support.counts import public
from tests.support.ordering import end, take
from tests.support.principals import acting
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    pumping,
)
from tests.support.receiver import Receiver, Reply
from tests.support.snapshot import undone

pytestmark = pytest.mark.django_db(transaction=True)
OPERATOR = acting("user:operator")
AN_HOUR_MS = 3_600_000


def audit(*arguments: str) -> dict[str, Any]:
    """Return the report, which must match the exit code."""
    out, failed = StringIO(), False
    try:
        call_command("reconcile", "--json", "--grace", "0s", *arguments, stdout=out)
    except SystemExit as end:
        failed = end.code == 1
    report: dict[str, Any] = json.loads(out.getvalue())
    assert failed == (report["gap"] > 0)
    return report


def found(*arguments: str) -> dict[str, tuple[int, list[str]]]:
    """Return count and ids of the findings of each check."""
    return {it["check"]: (it["count"], it["ids"]) for it in audit(*arguments)["findings"]}


def lived_in(receiver: Receiver) -> tuple[Channel, Consumer]:
    """Let the broker deliver, retry, end, replay, cancel, pause and retire."""
    channel = make_channel()
    well = make_consumer(channel, receiver.url("/well"))
    # So few failures do not open its circuit, for which the test would have to wait.
    make_consumer(channel, receiver.url("/status/500"), event_types=["user.*"], max_attempts=2)
    receiver.script("/flaky", [Reply(500), Reply(200)] * 3)
    make_consumer(channel, receiver.url("/flaky"), event_types=["order.paid"])
    retired = make_consumer(channel, receiver.url("/retired"))
    publish(channel, b"1", b"2", event_type="order.paid")
    publish(channel, b"3", event_type="user.born")
    deliver()
    retired.state = Consumer.State.RETIRED
    retired.save()
    everything = replay.parse({"channel": channel.slug})
    replay.create(everything, replay.consumers_of(everything, OPERATOR), OPERATOR, now=clock.now())
    deliver()
    paused = make_consumer(channel, receiver.url("/paused"))
    missing = {"channel": channel.slug, "consumer": paused.client_id}
    replay.create(replay.parse(missing, kind="missing"), [paused], OPERATOR, now=clock.now())
    deliver()
    paused.state = Consumer.State.PAUSED
    paused.save()
    publish(channel, b"4", b"5", delay_ms=AN_HOUR_MS)
    fanout.fan_out(100, 0)
    waits = Delivery.objects.filter(consumer=paused, state="queued").first()
    assert waits is not None
    cancel.cancel_one(waits.id, OPERATOR, now=clock.now())
    return channel, well


def deliver() -> None:
    """Run the due replays, and a pump for what waits; changes need no confirmation by it."""
    replay.run_due(clock.now(), 0)
    with pumping() as pump:
        pump_until(pump, all_finished)


@pytest.fixture
def lived() -> tuple[Channel, Consumer]:
    """A channel and its only consumer: one message retried and delivered, one scheduled."""
    return lived_briefly()


def lived_briefly() -> tuple[Channel, Consumer]:
    channel = make_channel()
    consumer = make_consumer(channel, "http://127.0.0.1:9/")
    publish(channel, b"1", event_type="order.paid")
    fanout.fan_out(100, 0)
    for how in ("retry", "delivered"):
        now = clock.now()
        Delivery.objects.filter(consumer=consumer, state="queued").update(due_at=now)
        assert end(take(consumer, now), how, now) == 1
    publish(channel, b"2", delay_ms=AN_HOUR_MS)
    fanout.fan_out(100, 0)
    return channel, consumer


def test_reconciliation_of_normal_operation_finds_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With key ranges of any size, and after retention deleted a part of the rows."""
    channel, well = lived_in(receiver)
    report = audit()
    assert (report["gap"], report["findings"]) == (0, [])
    assert report["messages"] == Message.objects.count() == 5
    assert report["deliveries"] == Delivery.objects.count()
    row = next(it for it in report["consumers"] if it["consumer"] == well.client_id)
    assert row["accepted"] == 5
    assert row["delivered"] + row["queued"] == 5
    assert report["channels"][0]["fanned_out"] == Delivery.objects.count()
    for size in (1, 7):
        with monkeypatch.context() as patched:
            patched.setattr(reconciliation_scope, "SLICE", size)
            assert audit() == report, size

    channel.retention_days, channel.dead_retention_days = 1, 90
    channel.save()
    later = clock.now() + timedelta(days=2)
    assert sum(retention.prune(later, 0))
    assert Message.objects.filter(consumer_count__gt=1).exists()
    channel.retention_days = 30
    channel.save()
    assert audit()["gap"] == 0


def test_a_lost_delivery_is_found_twice(lived: tuple[Channel, Consumer]) -> None:
    _, well = lived
    row = Delivery.objects.get(state="queued")
    assert found() == {}
    Delivery.objects.filter(id=row.id).delete()
    Counter.add({(well.id, row.state): -1, (well.id, "made"): -1}, 0)
    name = ids.to_public(ids.MESSAGE, row.message_id)
    assert found() == {"fan_out": (1, [name]), "missing": (1, [name])}
    (account,) = [it for it in audit()["consumers"] if it["consumer"] == well.client_id]
    assert account["accepted"] == account["delivered"] + account["queued"] + account["missing"]
    assert account["missing"] == 1


def test_a_missing_delivery_of_one_consumer_is_found(lived: tuple[Channel, Consumer]) -> None:
    channel, well = lived
    (message_id,) = publish(channel, b"6")
    # As if the fan-out had not known the consumer: it recorded the number of deliveries it made.
    Message.objects.filter(id=message_id).update(state="dispatched", consumer_count=0)
    findings = audit()["findings"]
    assert {it["check"] for it in findings} == {"missing"}
    assert well.client_id in {it["consumer"] for it in findings}


def test_a_message_without_fan_out_is_found(lived: tuple[Channel, Consumer]) -> None:
    (message_id,) = publish(lived[0], b"6")
    then = clock.now() - timedelta(minutes=6)
    Message.objects.filter(id=message_id).update(accepted_at=then)
    assert found("--grace", "5m") == {"undispatched": (1, [ids.to_public(ids.MESSAGE, message_id)])}


@pytest.fixture
def keyed(lived: tuple[Channel, Consumer]) -> tuple[Channel, int]:
    """A channel, and the second of three messages that came with idempotency keys."""
    channel, _ = lived
    channel.idempotency_window_s = 7 * 86_400
    channel.save()
    made = [publish(channel, b"6", idempotency_key=key, delay_ms=AN_HOUR_MS) for key in "abc"]
    fanout.fan_out(100, 0)
    return channel, made[1][0]


def lose(message_id: int) -> str:
    """Delete a message with all its rows."""
    for row in Delivery.objects.filter(message_id=message_id):
        Delivery.objects.filter(id=row.id)._raw_delete("default")
        Counter.add({(row.consumer_id, row.state): -1, (row.consumer_id, "made"): -1}, 0)
    MessageBody.objects.filter(message_id=message_id).delete()
    Message.objects.filter(id=message_id)._raw_delete("default")
    return ids.to_public(ids.MESSAGE, message_id)


def test_a_deleted_message_is_found_by_its_idempotency_key(
    keyed: tuple[Channel, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found() == {}
    name = lose(keyed[1])
    for size in (1, 1000):
        monkeypatch.setattr(reconciliation_scope, "SLICE", size)
        assert found() == found("--since", "1h") == {"lost": (1, [name])}
        assert found("--until", "1h") == found("--channel", keyed[0].slug) == {}


def test_a_lost_message_is_reported_once_whatever_the_idempotency_window(
    keyed: tuple[Channel, int],
) -> None:
    for hours in (1, 2, 7 * 24 + 1):
        make_channel(idempotency_window_s=hours * 3600)
    name = lose(keyed[1])
    assert found("--since", "3h") == {"lost": (1, [name])}
    # This key is older than the change of the channel's window: only a full reconciliation
    # finds it.
    keyed[0].idempotency_window_s = 86_400
    keyed[0].save()
    IdempotencyRecord.objects.update(expires_at=clock.now() + timedelta(days=20))
    assert found("--since", "3h") == {}
    assert found() == {"lost": (1, [name])}


def test_the_newest_message_of_all_is_not_too_new_to_be_lost(keyed: tuple[Channel, int]) -> None:
    name = lose(Message.objects.latest("id").id)
    assert found() == {"lost": (1, [name])}


def test_a_message_deleted_by_retention_is_not_lost(keyed: tuple[Channel, int]) -> None:
    channel, _ = keyed
    (unwanted,) = publish(channel, b"7", idempotency_key="d", event_type="nobody.wants.it")
    change(Consumer.objects.get(channel=channel), event_types=["order.*"])
    ConfigVersion.bump()
    fanout.fan_out(100, 0)
    assert Message.objects.get(id=unwanted).consumer_count == 0
    channel.retention_days = 1
    channel.save()
    assert sum(retention.prune(clock.now() + timedelta(days=2), 0))
    assert not Message.objects.filter(id=unwanted).exists()
    assert IdempotencyRecord.objects.filter(message_id=unwanted).exists()
    assert found() == {}


@pytest.mark.parametrize("scope", ["producer", "channel"])
def test_a_message_deleted_with_its_channel_is_not_lost(
    keyed: tuple[Channel, int], scope: str
) -> None:
    channel, _ = keyed
    channel.idempotency_scope = scope
    channel.save()
    ConfigVersion.bump()
    publish(channel, b"7", idempotency_key="in this scope")
    other = make_channel()
    publish(other, b"1", idempotency_key="a")
    fanout.fan_out(100, 0)
    channel_erasure.close(channel, acting("user:olga"), channel_erasure.count_rows(channel))
    for _ in channel_erasure.rows(channel):
        assert found() == {}
    assert channel_erasure.finish(channel, acting("user:olga"))
    assert found() == {}
    assert IdempotencyRecord.objects.count() == 1


def tell_of_one_more(row: Delivery) -> None:
    Delivery.objects.filter(id=row.id).update(attempt_count=F("attempt_count") + 1)


def lose_the_first(row: Delivery) -> None:
    Attempt.objects.filter(delivery=row, number=1).delete()


def renumber_the_last(row: Delivery) -> None:
    last = Attempt.objects.filter(delivery=row).latest("number")
    Attempt.objects.filter(id=last.id).update(number=last.number + 1)


def renumber_the_first(row: Delivery) -> None:
    Attempt.objects.filter(delivery=row, number=1).update(number=0)


def test_a_gap_in_the_attempts_is_found(lived: tuple[Channel, Consumer]) -> None:
    row = Delivery.objects.get(attempt_count__gt=1)
    for spoil in (tell_of_one_more, lose_the_first, renumber_the_last, renumber_the_first):
        with undone():
            spoil(row)
            assert found() == {"attempts": (1, [public(row)])}, spoil


def hold(row: Delivery, until: timedelta) -> None:
    """Lease a delivery as a worker does that claims it."""
    Delivery.objects.filter(id=row.id).update(
        state="in_flight", attempt_count=1, due_at=clock.now() + until
    )
    Counter.add({(row.consumer_id, "queued"): -1, (row.consumer_id, "in_flight"): 1}, 0)


def test_the_attempt_in_flight_is_not_in_the_history_yet(lived: tuple[Channel, Consumer]) -> None:
    row = Delivery.objects.get(state="queued")
    hold(row, timedelta(seconds=5))
    assert found() == {}
    Delivery.objects.filter(id=row.id).update(attempt_count=2)
    assert found() == {"attempts": (1, [public(row)])}


def test_wrong_counters_are_found_and_repaired(lived: tuple[Channel, Consumer]) -> None:
    _, well = lived
    # The sum stays correct, so the sweep that checks only the sum does not see it.
    Counter.add({(well.id, "delivered"): 1, (well.id, "queued"): -1}, 3)
    assert found() == {"counters": (2, ["delivered -1", "queued +1"])}
    call_command("repair_counters", stdout=StringIO())
    assert found() == {}


def test_a_lease_past_its_end_or_far_ahead_is_found(lived: tuple[Channel, Consumer]) -> None:
    row = Delivery.objects.get(state="queued")
    for minutes in (-6, 60):
        with undone():
            hold(row, timedelta(minutes=minutes))
            assert found("--grace", "5m") == {"leases": (1, [public(row)])}, minutes


def long_due(channel: Channel, consumer: Consumer) -> Delivery:
    """Return a delivery that was due ten minutes ago, of a consumer that did not change since."""
    then = clock.now() - timedelta(minutes=10)
    Channel.objects.filter(id=channel.id).update(updated_at=then)
    Consumer.objects.filter(id=consumer.id).update(updated_at=then)
    row = Delivery.objects.get(consumer=consumer, state="queued")
    Delivery.objects.filter(id=row.id).update(due_at=then)
    return row


def test_a_due_delivery_that_is_not_claimed_is_found(lived: tuple[Channel, Consumer]) -> None:
    row = long_due(*lived)
    assert found("--grace", "5m") == {"late": (1, [public(row)])}
    assert found("--grace", "15m") == {}


def change(consumer: Consumer, **values: Any) -> None:
    """Change its configuration, which keeps its age unless ``values`` has another."""
    Consumer.objects.filter(id=consumer.id).update(version=F("version") + 1, **values)


def ail(consumer: Consumer, **values: Any) -> None:
    ConsumerHealth.objects.update_or_create(consumer=consumer, defaults=values)


def is_busy(consumer: Consumer) -> None:
    row = Delivery.objects.filter(consumer=consumer, state="queued").latest("id")
    hold(row, timedelta(seconds=5))


def is_served_only_by_a_pump_that_just_started(_: Consumer) -> None:
    now = clock.now()
    PumpSlot.objects.create(
        cluster="x", ordinal=0, generation=1, host="h", pid=1, started_at=now, heartbeat_at=now
    )


REASONS_TO_WAIT: dict[str, Callable[[Consumer], object]] = {
    "it is paused": lambda it: change(it, state="paused"),
    "it is disabled": lambda it: change(it, state="disabled"),
    "it was just resumed": lambda it: change(it, updated_at=clock.now()),
    "it has a rate": lambda it: change(it, rate_per_second=0.001),
    "it pulls": lambda it: change(it, mode="pull"),
    "it fails": lambda it: ail(it, circuit="open"),
    "it asked for less": lambda it: ail(it, slow_until=clock.now() + timedelta(hours=1)),
    "its channel is paused": lambda it: Channel.objects.filter(id=it.channel_id).update(
        paused=True, version=F("version") + 1
    ),
    "it is busy": is_busy,
    "its pump just started": is_served_only_by_a_pump_that_just_started,
}


def test_deliveries_that_wait_for_a_reason_are_no_mismatch(lived: tuple[Channel, Consumer]) -> None:
    long_due(*lived)
    for reason, hold_back in REASONS_TO_WAIT.items():
        with undone():
            hold_back(lived[1])
            ConfigVersion.bump()
            assert found("--grace", "5m") == {}, reason
    assert found("--grace", "5m").keys() == {"late"}


def test_a_message_that_lost_its_body_is_found(lived: tuple[Channel, Consumer]) -> None:
    row = Delivery.objects.get(state="queued")
    done = Message.objects.create(
        id=new_id(),
        channel=lived[0],
        state="cancelled",
        accepted_at=clock.now(),
        due_at=clock.now(),
    )
    MessageBody.objects.filter(message_id__in=[row.message_id, done.id]).delete()
    assert found() == {"bodies": (1, [ids.to_public(ids.MESSAGE, row.message_id)])}


def lose_a_message(row: Delivery) -> tuple[str, int]:
    Message.objects.filter(id=row.message_id)._raw_delete("default")
    MessageBody.objects.filter(message_id=row.message_id).delete()
    return public(row), Delivery.objects.filter(message_id=row.message_id).count()


def lose_its_delivery(row: Delivery) -> tuple[str, int]:
    attempt = Attempt.objects.filter(delivery=row).earliest("id")
    Delivery.objects.filter(id=row.id)._raw_delete("default")
    Counter.add({(row.consumer_id, row.state): -1, (row.consumer_id, "made"): -1}, 0)
    return ids.to_public(ids.ATTEMPT, attempt.id), Attempt.objects.filter(delivery=row).count()


def lose_its_consumer(row: Delivery) -> tuple[str, int]:
    first = Delivery.objects.filter(consumer=row.consumer_id).earliest("message_id")
    number = Delivery.objects.filter(consumer=row.consumer_id).count()
    Consumer.objects.filter(id=row.consumer_id)._raw_delete("default")
    return public(first), number


def lose_its_body(row: Delivery) -> tuple[str, int]:
    lost = new_id()
    MessageBody.objects.create(message_id=lost, data=b"x")
    return ids.to_public(ids.MESSAGE, lost), 1


def lose_its_channel(row: Delivery) -> tuple[str, int]:
    number = Message.objects.filter(channel=row.channel_id).count()
    first = Message.objects.filter(channel=row.channel_id).earliest("id")
    Consumer.objects.filter(channel=row.channel_id).update(channel_id=make_channel().id)
    Channel.objects.filter(id=row.channel_id)._raw_delete("default")
    ConfigVersion.bump()
    return ids.to_public(ids.MESSAGE, first.id), number


def test_a_row_whose_parent_is_gone_is_found(lived: tuple[Channel, Consumer]) -> None:
    row = Delivery.objects.get(attempt_count__gt=1)
    for lose_parent in (
        lose_a_message,
        lose_its_delivery,
        lose_its_consumer,
        lose_its_body,
        lose_its_channel,
    ):
        with undone(), connection.constraint_checks_disabled():
            name, number = lose_parent(row)
            count, names = found()["orphans"]
            assert (count, name in names) == (number, True), lose_parent


def test_reconciliation_can_be_limited(lived: tuple[Channel, Consumer]) -> None:
    """To a time range, a channel or a consumer."""
    channel, well = lived
    other, _ = lived_briefly()
    lose_the_first(Delivery.objects.get(channel=other, attempt_count__gt=1))
    assert audit("--since", "1h")["gap"] == 1
    assert audit("--until", "1h")["gap"] == 0
    assert audit("--until", "1h")["messages"] == 0
    later = (clock.now() + timedelta(hours=1)).isoformat()
    assert audit("--since", later)["messages"] == 0

    assert audit("--channel", other.slug)["gap"] == 1
    assert audit("--channel", channel.slug)["gap"] == 0
    assert audit("--channel", channel.slug)["messages"] == 2
    assert audit("--consumer", well.client_id)["gap"] == 0
    assert audit("--consumer", well.client_id)["deliveries"] == 2


def test_reconciliation_of_pull_consumers_finds_nothing() -> None:
    """Each message goes to one consumer, and a consumer may stop receiving."""
    channel = make_channel(kind="queue")
    for _ in range(3):
        make_consumer(channel, "", mode="pull")
    publish(channel, b"x", b"y")
    fanout.fan_out(100, slot=0)
    requests = [ClaimRequest(consumer.id, 5, 1, owner=-1) for consumer in channel.consumers.all()]
    held = claim.claim(requests, now=clock.now(), slot=0).rows
    assert len(held) == 2
    Delivery.objects.update(due_at=clock.now() - timedelta(days=2))
    assert found() == {}
    Delivery.objects.update(due_at=clock.now() + timedelta(hours=11))
    assert found() == {}
    Message.objects.filter(id=held[0].message_id).update(consumer_count=2)
    assert "fan_out" in found()
