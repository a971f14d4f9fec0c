"""Recurring messages: each occurrence is fired exactly once, even when processes die."""

import threading
import zoneinfo
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.core.errors import Conflict, OverQuota, StorageFull
from channels_app.core.recurrence import Timetable
from channels_app.database import clock
from channels_app.ingest import accept, limits
from channels_app.ingest.accept import Publication
from channels_app.models import (
    AuditEntry,
    Channel,
    IdempotencyRecord,
    Message,
    MessageBody,
    Schedule,
    ScheduleBody,
    Team,
)
from channels_app.registry import data_encryption, producers, schedules
from channels_app.registry.cache import config_cache
from channels_app.registry.schedules import Order
from delivery.maintenance import channel_erasure, recurring, sweeps
from delivery.maintenance import quota_usage as counting
from delivery.maintenance.recurring import ScheduleRunner
from delivery.models import Delivery
from delivery.queue import reschedule
from tests.support import clocks
from tests.support.broker import wait_until
from tests.support.factories import (
    ConsumerFactory,
    DeliveryFactory,
    EventTypeFactory,
    ProducerFactory,
    ScheduleFactory,
    TeamFactory,
)
from tests.support.limits import a_short_disk
from tests.support.principals import acting
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    pumping,
    view_of,
)
from tests.support.receiver import Receiver
from tests.support.threads import at_once

pytestmark = pytest.mark.django_db(transaction=True)
TEST = acting("test")
SECOND = timedelta(seconds=1)


def due(late_s: float = 0.5, **values: Any) -> Schedule:
    """Create a schedule whose next occurrence was ``late_s`` ago, to the millisecond."""
    at = clock.now() - timedelta(seconds=late_s)
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    return ScheduleFactory.create(start_at=at, next_at=at, **values)


def order(schedule: Schedule, principal: Principal = TEST) -> Order:
    """Return a call on the schedule."""
    return Order(schedule.channel.slug, schedule.name, principal)


def all_fired() -> None:
    """Fire until nothing is due."""
    while recurring.fire_due():
        pass


def fresh(schedule: Schedule) -> Schedule:
    """Return the schedule as it is stored now."""
    return Schedule.objects.get(pk=schedule.pk)


def keys() -> list[str]:
    """Return the idempotency keys of all messages, in order of acceptance."""
    return list(Message.objects.order_by("id").values_list("idempotency_key", flat=True))


@pytest.mark.seed("S4-06")
def test_a_due_schedule_publishes_and_advances() -> None:
    producer = ProducerFactory.create(default_priority=7)
    schedule = due(
        producer=producer,
        event_type="report.due",
        ordering_key="room-7",
        headers={"X-Report": "daily"},
        body=b"exactly this",
    )
    assert schedule.start_at is not None
    assert recurring.fire_due() == 1
    message = Message.objects.get()
    assert (message.channel_id, message.producer) == (schedule.channel_id, producer)
    assert (message.event_type, message.ordering_key) == ("report.due", "room-7")
    assert (message.priority, data_encryption.headers_of(message)) == (7, {"X-Report": "daily"})
    occurrence_ms = round(schedule.start_at.timestamp() * 1000)
    assert message.idempotency_key == f"schedule:{schedule.name}:{occurrence_ms}"
    stored = MessageBody.objects.get()
    assert data_encryption.decrypt_body(message.id, bytes(stored.data)) == b"exactly this"
    assert stored.key_id
    moved = fresh(schedule)
    assert moved.next_at == schedule.start_at + timedelta(minutes=1)
    assert (moved.fired_count, moved.last_message_id) == (1, message.id)
    (line,) = moved.recent
    assert (line["result"], line["message"]) == ("fired", ids.to_public(ids.MESSAGE, message.id))
    assert moved.version == schedule.version
    assert recurring.fire_due() == 0


def test_a_scheduled_occurrence_is_delivered(receiver: Receiver) -> None:
    schedule = due(body=b"tick")
    ConsumerFactory.create(channel=schedule.channel, url=receiver.url("/ok"))
    with pumping() as pump:
        assert recurring.fire_due() == 1
        pump_until(pump, lambda: Message.objects.exists() and all_finished())
    (heard,) = receiver.requests("/ok")
    assert heard.body == b"tick"


def test_due_schedules_share_a_transaction() -> None:
    channel = due(name="first").channel
    for number in range(6):
        due(channel=channel, name=f"more-{number}", producer=None)
    assert recurring.fire_due(most=4) == 4
    all_fired()
    assert len(set(keys())) == 7


@pytest.mark.seed("S4-06")
@pytest.mark.parametrize(
    ("misfire", "fired", "missed"), [("fire_once", 2, 8), ("fire_all", 10, 0), ("skip", 1, 9)]
)
def test_missed_occurrences_follow_the_misfire_policy(
    misfire: str, fired: int, missed: int
) -> None:
    schedule = due(late_s=9 * 60 + 30, misfire=misfire)
    all_fired()
    moved = fresh(schedule)
    assert (moved.fired_count, moved.skipped_count) == (fired, missed)
    assert moved.next_at is not None
    assert moved.next_at > clock.now()
    assert len(keys()) == len(set(keys())) == fired
    assert ("missed" in {line["result"] for line in moved.recent}) == bool(missed)


def test_overlap() -> None:
    schedule = due(late_s=10, every_ms=4000, overlap="skip_if_undelivered")
    consumer = ConsumerFactory.create(channel=schedule.channel)
    assert recurring.fire_due() == 1
    first = Message.objects.get()
    assert recurring.fire_due() == 1  # the first message is not fanned out yet
    assert fresh(schedule).recent[0]["result"] == "overlapped"
    Message.objects.update(state="dispatched")
    delivery = DeliveryFactory.create(consumer=consumer, message=first)
    assert recurring.fire_due() == 1  # it is not delivered yet
    assert (Message.objects.count(), fresh(schedule).skipped_count) == (1, 2)
    Delivery.objects.filter(pk=delivery.pk).update(state="dead", due_at=None)
    Schedule.objects.update(next_at=clock.now())
    assert recurring.fire_due() == 1
    assert Message.objects.count() == 2


def test_a_schedule_ends_at_its_limit() -> None:
    schedule = due(late_s=10, every_ms=1000, limit=3)
    all_fired()
    moved = fresh(schedule)
    assert (moved.state, moved.next_at, moved.fired_count) == ("ended", None, 3)
    assert len(keys()) == 3


def test_a_schedule_ends_at_its_end_time() -> None:
    schedule = due(late_s=10, every_ms=4000)
    assert schedule.start_at is not None
    Schedule.objects.update(end_at=schedule.start_at + timedelta(seconds=4))
    all_fired()
    assert (fresh(schedule).state, len(keys())) == ("ended", 2)


def strict(schedule: Schedule) -> None:
    EventTypeFactory.create(
        channel=schedule.channel, name="a.b", schema={"type": "object", "required": ["order"]}
    )
    Schedule.objects.update(event_type="a.b")


def smaller(schedule: Schedule) -> None:
    schedule.channel.max_body_bytes = 3
    schedule.channel.save()


def disabled(schedule: Schedule) -> None:
    assert schedule.producer is not None
    producers.patch(schedule.producer.slug, {"disabled": True}, principal=acting("test"))


def humbled(schedule: Schedule) -> None:
    assert schedule.producer is not None
    Schedule.objects.update(priority=9)
    producers.patch(schedule.producer.slug, {"max_priority": 5}, principal=acting("test"))


def keyless(schedule: Schedule) -> None:
    ScheduleBody.objects.update(data=b"\x01" + b"x" * 40)


@pytest.mark.parametrize("spoil", [strict, smaller, disabled, humbled, keyless])
def test_an_occurrence_that_the_channel_refuses_is_not_published(
    spoil: Callable[[Schedule], None],
) -> None:
    schedule = due(producer=ProducerFactory.create())
    spoil(schedule)
    config_cache.refresh(now=True)
    assert recurring.fire_due() == 1
    moved = fresh(schedule)
    assert (moved.recent[0]["result"], moved.skipped_count, moved.state) == ("refused", 1, "active")
    assert " " in moved.recent[0]["detail"]
    assert not Message.objects.exists()
    with pytest.raises(Conflict):
        recurring.run_now(order(schedule))
    assert not AuditEntry.objects.filter(action="schedule.run").exists()


def fill(schedule: Schedule, scope: str) -> None:
    """Set a limit of one waiting message, and let one wait."""
    team = TeamFactory.create()
    limited: Channel | Team = schedule.channel if scope == "channel" else team
    limited.max_waiting_messages = 1
    for row in (team, schedule.channel):
        row.save()
    assert schedule.producer is not None
    producers.patch(schedule.producer.slug, {"team": team.slug}, principal=acting("test"))
    accept.accept(view_of(schedule.channel), schedule.producer.pk, [Publication(b"waits")])


def counted() -> None:
    """Run the count of the maintenance process and make this process read it."""
    for _ in counting.count(clock.now()):
        pass
    limits.forget()


def refusals(reason: str) -> tuple[float, float]:
    """Return the metrics of refused occurrences and messages."""
    names = ("hookstation_schedule_occurrences_total", {"result": "refused"})
    messages = ("hookstation_publish_refused_total", {"reason": reason})
    occurrences, refused = (REGISTRY.get_sample_value(*it) or 0.0 for it in (names, messages))
    return occurrences, refused


@pytest.mark.trap("an unlimited backlog")
@pytest.mark.parametrize("reason", ["channel", "team", "disk"])
def test_an_occurrence_over_a_quota_is_refused_and_the_next_one_tried(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = due(producer=ProducerFactory.create(), limit=1)
    sentence = "Nothing was stored: "
    if reason == "disk":
        full: AbstractContextManager[None] = a_short_disk(monkeypatch)
        sentence += "the broker's disk is full."
    else:
        fill(schedule, reason)
        full = nullcontext()
        sentence += f"1 messages wait in the {reason} "
    waiting, (occurrences, messages) = Message.objects.count(), refusals(reason)
    with full:
        assert recurring.fire_due() == 1
        with pytest.raises((OverQuota, StorageFull)):
            recurring.run_now(order(schedule))
    moved = fresh(schedule)
    (line,) = moved.recent
    assert (line["result"], line["message"], moved.last_message_id) == ("refused", None, None)
    assert line["detail"].startswith(sentence)
    assert (moved.fired_count, moved.skipped_count, moved.state) == (0, 1, "active")
    assert moved.next_at is not None
    assert moved.next_at > clock.now()
    assert refusals(reason) == (occurrences + 1, messages + 2)
    assert Message.objects.count() == waiting
    assert not AuditEntry.objects.filter(action="schedule.run").exists()
    Message.objects.update(state="dispatched")  # without deliveries: nothing waits any more
    counted()
    Schedule.objects.update(next_at=clock.now())
    assert recurring.fire_due() == 1
    assert (fresh(schedule).fired_count, fresh(schedule).state) == (1, "ended")


@pytest.mark.trap("an unlimited backlog")
def test_of_due_occurrences_as_many_are_published_as_the_quota_allows() -> None:
    schedules = [due(name="first")]
    channel = schedules[0].channel
    channel.max_waiting_messages = 3
    channel.save()
    schedules += [due(channel=channel, name=f"more-{number}") for number in range(4)]
    before = refusals("channel")
    assert recurring.fire_due() == 5
    results = [fresh(schedule).recent[0]["result"] for schedule in schedules]
    assert sorted(results) == ["fired"] * 3 + ["refused"] * 2
    assert Message.objects.count() == 3
    assert refusals("channel") == (before[0] + 2, before[1] + 2)


@pytest.mark.trap("an unlimited backlog")
def test_a_scheduled_message_uses_quota_when_it_is_published(receiver: Receiver) -> None:
    channel = make_channel(max_waiting_messages=2)
    make_consumer(channel, receiver.url("/ok"))
    later = clock.now() + timedelta(hours=1)
    (scheduled,) = publish(channel, b"later", due_at=later)
    publish(channel, b"now")
    for options in ({}, {"due_at": later}):
        with pytest.raises(OverQuota):
            publish(channel, b"too many", **options)
    now = clock.now()
    reschedule.reschedule(scheduled, Principal("test"), now=now, due_at=now)
    with pumping() as pump:
        pump_until(pump, lambda: Delivery.objects.filter(state="delivered").count() == 2)
    assert {one.body for one in receiver.requests("/ok")} == {b"later", b"now"}


def test_a_removed_time_zone_ends_a_schedule() -> None:
    schedule = due(every_ms=None, cron="* * * * *", timezone="Mars/Phobos")
    recurring.fire_due()
    moved = fresh(schedule)
    assert (moved.state, moved.recent[0]["result"]) == ("ended", "refused")
    assert recurring.fire_due() == 0


@pytest.fixture
def shift(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Return a function that installs the rules of a zone, an offset from UTC in hours."""
    folder = tmp_path / "Test"
    folder.mkdir()

    def install(hours: int) -> None:
        rules = resources.files("tzdata") / "zoneinfo" / "Etc" / f"GMT{-hours:+d}"
        (folder / "new").write_bytes(rules.read_bytes())
        (folder / "new").rename(folder / "City")

    zoneinfo.reset_tzpath([tmp_path])
    yield install
    zoneinfo.reset_tzpath()


@pytest.mark.trap("rules of a time zone that change")
@pytest.mark.parametrize("by_sweep", [True, False], ids=["sweep", "runner"])
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_schedule_follows_new_rules_of_its_time_zone(
    shift: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, hours: int, by_sweep: bool
) -> None:
    shift(5)
    table = Timetable(cron="0 12 * * *", zone="Test/City")
    stored = table.after(clock.now())
    assert stored is not None
    schedule = ScheduleFactory.create(
        every_ms=None, cron=table.cron, timezone=table.zone, next_at=stored
    )
    assert list(recurring.realign()) == [0]
    shift(5 + hours)
    at = stored - timedelta(hours=hours)
    if by_sweep:
        assert list(recurring.realign()) == [1]
        assert list(recurring.realign()) == []
        assert fresh(schedule).next_at == at
    # What the pages show is when it fires.
    assert schedule.timetable.after(at - SECOND) == at
    move = clocks.forward(monkeypatch)
    for instant, fired in ((min(at, stored), at < stored and by_sweep), (max(at, stored), True)):
        move((instant - clock.now()).total_seconds() + 0.5)
        all_fired()
        assert fresh(schedule).fired_count == fired
    assert fresh(schedule).next_at == at + timedelta(days=1)


def test_a_paused_channel_takes_messages_and_a_paused_schedule_makes_none() -> None:
    schedule = due()
    schedule.channel.paused = True
    schedule.channel.save()
    assert recurring.fire_due() == 1
    Schedule.objects.update(next_at=clock.now())
    schedules.pause(order(schedule))
    assert recurring.fire_due() == 0
    schedules.resume(order(schedule))
    next_at = fresh(schedule).next_at
    assert next_at is not None
    assert next_at > clock.now()  # occurrences during the pause are gone


def test_a_channel_takes_its_schedules_along() -> None:
    schedule = due()
    going = channel_erasure.count_rows(schedule.channel)
    assert going.schedules == 1
    channel_erasure.close(schedule.channel, acting("test"), going)
    assert recurring.fire_due() == 0
    assert channel_erasure.finish(schedule.channel, acting("test"))
    assert not Channel.objects.exists()
    assert not ScheduleBody.objects.exists()


def test_by_hand() -> None:
    schedule = ScheduleFactory.create(paused=True)
    shown = recurring.run_now(order(schedule, acting("user:mia", "why")))
    again = recurring.run_now(order(schedule, acting("user:mia")))
    assert shown["id"] != again["id"]
    moved = fresh(schedule)
    assert (moved.fired_count, moved.state, moved.next_at) == (0, "paused", None)
    assert [line["message"] for line in moved.recent] == [again["id"], shown["id"]]
    entry = AuditEntry.objects.filter(action="schedule.run").order_by("id")[0]
    assert (entry.actor, entry.reason, entry.after) == ("user:mia", "why", {"message": shown["id"]})


def test_a_concurrent_change_of_a_schedule_wins() -> None:
    """The fence: a round that was computed with other settings is not stored."""
    schedule = due()
    Schedule.objects.update(version=99)
    with pytest.raises(recurring.Lost):
        recurring.move(schedule, [], next_at=None, message_id=1, skipped=0)
    assert fresh(schedule).state == "active"


@pytest.mark.mariadb
@pytest.mark.seed("S4-06")
def test_concurrent_processes_fire_each_occurrence_once() -> None:
    schedules = [due(late_s=20, every_ms=1000 + 100 * number) for number in range(6)]
    before = clock.now()

    def fire() -> None:
        for _ in range(20):
            recurring.fire_due(most=10)

    at_once(*[fire] * 3)
    all_fired()
    for schedule in schedules:
        moved = fresh(schedule)
        assert schedule.start_at is not None
        assert schedule.every_ms is not None
        table = schedule.timetable
        assert moved.next_at is not None
        expected, at = [], table.after(schedule.start_at - SECOND)
        while at is not None and at < moved.next_at:
            expected.append(f"schedule:{schedule.name}:{round(at.timestamp() * 1000)}")
            at = table.after(at)
        assert [key for key in keys() if f":{schedule.name}:" in key] == expected
        assert moved.fired_count == len(expected)
        assert moved.next_at > before
    assert IdempotencyRecord.objects.count() == len(keys())


@pytest.mark.slow("waits for occurrences of each second")
@pytest.mark.mariadb
@pytest.mark.seed("S4-06")
def test_two_schedulers_fire_each_occurrence_once_on_time() -> None:
    """As on two nodes. The lateness is that of a busy machine."""
    start = clock.now() + SECOND
    start = start.replace(microsecond=0)
    schedule = ScheduleFactory.create(every_ms=200, start_at=start, next_at=start, limit=15)
    works = [ScheduleRunner(lambda seconds: threading.Event().wait(seconds)) for _ in range(2)]
    for work in works:
        work.start()
    try:
        wait_until(lambda: fresh(schedule).state == "ended", 60, "it does not end")
    finally:
        for work in works:
            work.stop()
    assert len(keys()) == len(set(keys())) == 15
    for message in Message.objects.all():
        occurrence = int(message.idempotency_key.rpartition(":")[2]) / 1000
        assert message.accepted_at.timestamp() >= occurrence  # never early


@pytest.mark.mariadb
def test_a_scheduler_sees_new_schedules_at_once() -> None:
    work = ScheduleRunner(lambda seconds: threading.Event().wait(seconds))
    work.start()
    try:
        at = datetime.now(UTC)
        schedule = due()
        wait_until(lambda: fresh(schedule).fired_count > 0, 30, "it was not seen")
        assert datetime.now(UTC) > at
    finally:
        work.stop()
    assert not work.is_alive()


def test_the_sweep_fires_missed_occurrences() -> None:
    young, old = due(late_s=1), due(late_s=recurring.LATE.total_seconds() + 1)
    assert sweeps.overdue() == 1
    assert (fresh(young).fired_count, fresh(old).fired_count) == (0, 1)
