"""The audit of the books: clean on what the broker did by itself, red for every broken row."""

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import F

from channels_app import clock
from channels_app.models import Channel, Consumer, Message
from channels_app.rules import ids
from delivery.models import Attempt, Counter, Delivery
from delivery.rules.asker import Asker
from delivery.rules.lifecycle import FINISHED
from delivery.steps import cancel, dispatch, replay, retention
from delivery.steps.audit import stretches
from tests.delivery.books import public
from tests.pumping import make_channel, make_consumer, publish, pump_until, pumping
from tests.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)
OPERATOR = Asker("user:operator")
NOWHERE = "http://127.0.0.1:9/"


def audit(*arguments: str) -> dict[str, Any]:
    """The report, which must fit the exit code."""
    out, failed = StringIO(), False
    try:
        call_command("audit", "--json", "--grace", "0s", *arguments, stdout=out)
    except SystemExit as end:
        failed = end.code == 1
    report: dict[str, Any] = json.loads(out.getvalue())
    assert failed == (report["gap"] > 0)
    return report


def found(*arguments: str) -> dict[str, tuple[int, list[str]]]:
    """Findings by check: how many rows, and which."""
    return {it["check"]: (it["count"], it["ids"]) for it in audit(*arguments)["findings"]}


def lived_in(receiver: Receiver) -> tuple[Channel, Consumer]:
    """Delivered, retried, dead, replayed, cancelled, paused and retired: all by the broker."""
    channel = make_channel()
    well = make_consumer(channel, receiver.url("/well"))
    make_consumer(channel, receiver.url("/status/500"), event_types=["order.*"])
    receiver.script("/flaky", [Reply(500), Reply(200)] * 3)
    make_consumer(channel, receiver.url("/flaky"), event_types=["order.paid"])
    retired = make_consumer(channel, receiver.url("/retired"))
    publish(channel, b"1", b"2", event_type="order.paid")
    publish(channel, b"3", event_type="user.born")
    retired.state = Consumer.State.RETIRED
    mine = Delivery.objects.filter(channel=channel)

    def done() -> bool:
        return mine.exists() and not mine.exclude(state__in=FINISHED).exists()

    with pumping() as pump:
        pump_until(pump, done)
        retired.save()
        wanted = replay.parse({"channel": channel.slug})
        consumers = replay.consumers_of(wanted)
        replay.create(wanted, consumers, OPERATOR, now=clock.now())
        replay.run_due(clock.now(), 0)
        pump_until(pump, done)
        paused = make_consumer(channel, receiver.url("/paused"))
        replay.create(
            replay.parse({"channel": channel.slug, "consumer": paused.client_id}, kind="missing"),
            [paused],
            OPERATOR,
            now=clock.now(),
        )
        replay.run_due(clock.now(), 0)
        pump_until(pump, done)
        paused.state = Consumer.State.PAUSED
        paused.save()
        publish(channel, b"4", b"5")
        dispatch.dispatch(100, 0)
        waits = Delivery.objects.filter(consumer=paused, state="queued").first()
        assert waits is not None
        cancel.cancel_one(waits.id, OPERATOR, now=clock.now())
    return channel, well


@pytest.fixture
def lived(receiver: Receiver) -> tuple[Channel, Consumer]:
    """The channel, and the consumer that takes everything."""
    return lived_in(receiver)


def test_what_the_broker_did_by_itself_is_clean(lived: tuple[Channel, Consumer]) -> None:
    _, well = lived
    report = audit()
    assert (report["gap"], report["findings"]) == (0, [])
    assert report["messages"] == Message.objects.count() == 5
    assert report["deliveries"] == Delivery.objects.count()
    row = next(it for it in report["consumers"] if it["consumer"] == well.client_id)
    assert row["accepted"] == 5
    assert row["delivered"] + row["queued"] == 5
    assert report["channels"][0]["fanned_out"] == Delivery.objects.count()


def test_what_retention_took_is_not_missed(lived: tuple[Channel, Consumer]) -> None:
    channel, _ = lived
    channel.retention_days, channel.dead_retention_days = 1, 90
    channel.save()
    later = clock.now() + timedelta(days=2)
    assert sum(retention.prune(later, 0))
    assert Message.objects.filter(consumer_count__gt=1).exists()
    channel.retention_days = 30
    channel.save()
    assert audit()["gap"] == 0


def test_a_lost_delivery_is_found_twice(lived: tuple[Channel, Consumer]) -> None:
    channel, well = lived
    publish(channel, b"6")
    dispatch.dispatch(100, 0)
    row = Delivery.objects.filter(consumer=well).latest("id")
    assert found() == {}
    Attempt.objects.filter(delivery=row).delete()
    Delivery.objects.filter(id=row.id).delete()
    Counter.add({(well.id, row.state): -1, (well.id, "made"): -1}, 0)
    name = ids.to_public(ids.MESSAGE, row.message_id)
    assert found() == {"fan_out": (1, [name]), "missing": (1, [name])}
    (account,) = [it for it in audit()["consumers"] if it["consumer"] == well.client_id]
    assert account["accepted"] == account["delivered"] + account["queued"] + account["missing"]
    assert account["missing"] == 1


def test_a_fan_out_that_forgot_a_consumer_is_found(lived: tuple[Channel, Consumer]) -> None:
    channel, well = lived
    (message_id,) = publish(channel, b"6")
    # As if dispatch had not known the consumer: it wrote down what it made.
    Message.objects.filter(id=message_id).update(state="dispatched", consumer_count=0)
    findings = audit()["findings"]
    assert {it["check"] for it in findings} == {"missing"}
    assert well.client_id in {it["consumer"] for it in findings}


def test_a_message_that_nobody_fans_out_is_found(lived: tuple[Channel, Consumer]) -> None:
    (message_id,) = publish(lived[0], b"6")
    then = clock.now() - timedelta(minutes=6)
    Message.objects.filter(id=message_id).update(accepted_at=then)
    assert found("--grace", "5m") == {"undispatched": (1, [ids.to_public(ids.MESSAGE, message_id)])}


def tell_of_one_more(row: Delivery) -> None:
    Delivery.objects.filter(id=row.id).update(attempt_count=F("attempt_count") + 1)


def lose_the_first(row: Delivery) -> None:
    Attempt.objects.filter(delivery=row, number=1).delete()


def renumber_the_last(row: Delivery) -> None:
    last = Attempt.objects.filter(delivery=row).latest("number")
    Attempt.objects.filter(id=last.id).update(number=last.number + 1)


def renumber_the_first(row: Delivery) -> None:
    Attempt.objects.filter(delivery=row, number=1).update(number=0)


@pytest.mark.parametrize(
    "spoil", [tell_of_one_more, lose_the_first, renumber_the_last, renumber_the_first]
)
def test_a_history_with_a_hole_is_found(
    lived: tuple[Channel, Consumer], spoil: Callable[[Delivery], None]
) -> None:
    row = Delivery.objects.filter(attempt_count__gt=1).first()
    assert row is not None
    spoil(row)
    assert found() == {"attempts": (1, [public(row)])}


def test_the_attempt_in_flight_is_not_in_the_history_yet(
    lived: tuple[Channel, Consumer],
) -> None:
    row = Delivery.objects.filter(state="queued").first()
    assert row is not None
    Delivery.objects.filter(id=row.id).update(state="in_flight", attempt_count=1)
    Counter.add({(row.consumer_id, "queued"): -1, (row.consumer_id, "in_flight"): 1}, 0)
    assert found() == {}
    Delivery.objects.filter(id=row.id).update(attempt_count=2)
    assert found() == {"attempts": (1, [public(row)])}


def test_counters_that_lie_are_found_and_mended(lived: tuple[Channel, Consumer]) -> None:
    _, well = lived
    # They add up all the same: the sweep that looks at the sum alone does not see it.
    Counter.add({(well.id, "delivered"): 1, (well.id, "queued"): -1}, 3)
    assert found() == {"counters": (2, ["delivered -1", "queued +1"])}
    call_command("recount", stdout=StringIO())
    assert found() == {}


def test_a_stretch_of_time_alone_is_looked_at(lived: tuple[Channel, Consumer]) -> None:
    row = Delivery.objects.filter(attempt_count__gt=1).first()
    assert row is not None
    lose_the_first(row)
    assert audit("--since", "1h")["gap"] == 1
    assert audit("--until", "1h")["gap"] == 0
    assert audit("--until", "1h")["messages"] == 0
    later = (clock.now() + timedelta(hours=1)).isoformat()
    assert audit("--since", later)["messages"] == 0


def test_one_channel_and_one_consumer_alone_are_looked_at(
    lived: tuple[Channel, Consumer], receiver: Receiver
) -> None:
    channel, well = lived
    other, _ = lived_in(receiver)
    row = Delivery.objects.filter(channel=other, attempt_count__gt=1).first()
    assert row is not None
    lose_the_first(row)
    assert audit("--channel", other.slug)["gap"] == 1
    assert audit("--channel", channel.slug)["gap"] == 0
    assert audit("--channel", channel.slug)["messages"] == 5
    assert audit("--consumer", well.client_id)["gap"] == 0
    assert audit("--consumer", well.client_id)["deliveries"] == 5


@pytest.mark.parametrize("size", [1, 2, 7])
def test_stretches_of_any_size_come_to_the_same(
    lived: tuple[Channel, Consumer], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    whole = audit()
    monkeypatch.setattr(stretches, "SLICE", size)
    assert audit() == whole
