"""Replay: each matching delivery once, in bounded slices, despite concurrent changes."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.db.models import Q

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.core.errors import Conflict, Invalid, NotFound
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, Message, new_id
from delivery import replay
from delivery.models import Counter, Delivery, Replay
from delivery.replay import filters, requests, runner
from delivery.serializers.filters import BackfillFilterSerializer
from tests.support.counts import (
    assert_counters_are_true,
    database_url,
    make_deliveries,
    make_messages,
    public,
)
from tests.support.factories import ChannelFactory, ConsumerFactory, DeliveryFactory, TeamFactory
from tests.support.principals import acting

pytestmark = pytest.mark.django_db
ALICE = acting("user:alice", "after the outage")


def start(
    data: dict[str, Any], *, rate: float | None = None, now: datetime | None = None
) -> Replay:
    wanted = replay.parse(data)
    consumers = replay.consumers_of(wanted, ALICE)
    return replay.create(wanted, consumers, ALICE, now=now or clock.now(), rate_per_second=rate)


def of(consumer: Consumer, **more: Any) -> dict[str, Any]:
    return {"channel": consumer.channel.slug, "consumer": consumer.client_id, **more}


def run(job: Replay, budget: int = 1000) -> int:
    """Run slices until the replay ends; return the number of queued deliveries."""
    total = 0
    while True:
        total += replay.run_slice(job, clock.now(), budget)
        job.refresh_from_db()
        if job.state != "running":
            return total


def queued(consumer: Consumer) -> int:
    return Delivery.objects.filter(consumer=consumer, state="queued").count()


# -- single deliveries -------------------------------------------------------------------------


@pytest.mark.trap("wrong or slow counts of dead letters")
def test_a_replayed_delivery_has_a_new_budget_and_keeps_its_history() -> None:
    consumer = ConsumerFactory.create()
    (row,) = make_deliveries(consumer, 1, lease_owner=7)
    now = clock.now()

    after = replay.replay_one(row.id, ALICE, now=now)

    assert (after.state, after.reason, after.due_at) == ("queued", "replayed", now)
    assert (after.failure_count, after.interruption_count, after.lease_owner) == (0, 0, None)
    assert (after.attempt_count, after.outcome, after.status_code) == (3, "server_error", 500)
    assert after.finished_at is None
    assert after.version == row.version + 1
    job = Replay.objects.get()
    assert after.replay_id == job.id
    assert (job.state, job.matched_count, job.replayed_count) == ("finished", 1, 1)
    entry = AuditEntry.objects.get(target=f"delivery:{public(row)}")
    assert (entry.actor, entry.action) == ("user:alice", "delivery.replay")
    assert entry.reason == "after the outage"
    assert_counters_are_true()


def test_only_finished_deliveries_can_be_replayed() -> None:
    unfinished: list[dict[str, bool]] = [{}, {"in_flight": True}, {"retrying": True}]
    for traits in unfinished:
        row = DeliveryFactory.create(**traits)
        with pytest.raises(Conflict, match="only finished"):
            replay.replay_one(row.id, ALICE, now=clock.now())
    assert not Replay.objects.exists()
    for trait in ("dead", "delivered", "cancelled"):
        row = DeliveryFactory.create(**{trait: True})
        assert replay.replay_one(row.id, ALICE, now=clock.now()).state == "queued"
    assert_counters_are_true()


def test_retired_consumers_and_expired_messages_are_not_replayed() -> None:
    now = clock.now()
    removed = DeliveryFactory.create(dead=True, consumer=ConsumerFactory.create(retired=True))
    expired = DeliveryFactory.create(dead=True, expires_at=now)

    with pytest.raises(Conflict, match="retired"):
        replay.replay_one(removed.id, ALICE, now=now)
    with pytest.raises(Conflict, match="expired"):
        replay.replay_one(expired.id, ALICE, now=now)
    with pytest.raises(NotFound):
        replay.replay_one(new_id(), ALICE, now=now)


# -- several deliveries ------------------------------------------------------------------------


@pytest.mark.slow("makes five thousand rows")
@pytest.mark.trap("an unbounded bulk job")
def test_five_thousand_rows_in_slices_with_a_cancel_half_way() -> None:
    consumer, neighbour = ConsumerFactory.create(), ConsumerFactory.create()
    make_deliveries(consumer, 5000)
    make_deliveries(neighbour, 3)
    job = start(of(consumer))
    assert job.matched_count == 5000

    sizes = [replay.run_slice(job, clock.now(), 500) for _ in range(5)]
    assert sizes == [500] * 5
    replay.cancel(job.id, ALICE, now=clock.now())
    assert replay.run_slice(job, clock.now(), 500) == 0

    job.refresh_from_db()
    assert (job.state, job.replayed_count, queued(consumer)) == ("cancelled", 2500, 2500)
    assert start(of(consumer)).matched_count == 2500
    assert queued(neighbour) == 0
    assert_counters_are_true()


def test_the_oldest_rows_go_first_whatever_their_state() -> None:
    consumer = ConsumerFactory.create()
    rows = []
    for state in ("dead", "delivered", "cancelled", "dead", "delivered", "cancelled"):
        rows += make_deliveries(consumer, 2, state=state)
    job = start(of(consumer, states=["dead", "delivered", "cancelled"]))

    for size in (5, 3):
        replay.run_slice(job, clock.now(), size)

    assert set(Delivery.objects.filter(state="queued").values_list("id", flat=True)) == {
        row.id for row in rows[:8]
    }


def test_a_replay_queues_rows_in_their_state_once() -> None:
    consumer = ConsumerFactory.create()
    dead, taken, known = make_deliveries(consumer, 3)
    Delivery.objects.filter(id=taken.id).update(state="in_flight", due_at=clock.now())
    Delivery.objects.filter(id=known.id).update(replay_id=5)
    Counter.add({(consumer.id, "dead"): -1, (consumer.id, "in_flight"): 1}, 0)

    count = runner.requeue(
        [dead.id, taken.id, known.id],
        states=["dead"],
        replay_id=5,
        pace=runner.Pace(clock.now(), None),
        first_place=0,
        slot=0,
    )

    assert count == 1
    assert set(Delivery.objects.values_list("id", "state")) == {
        (dead.id, "queued"),
        (taken.id, "in_flight"),
        (known.id, "dead"),
    }
    assert_counters_are_true()


def test_a_key_range_begins_after_its_position_and_ends_at_its_limit() -> None:
    consumer = ConsumerFactory.create()
    rows = [row.id for row in make_deliveries(consumer, 5)]

    def look(after: int, upper: int, limit: int) -> runner.ReadKeys:
        return runner.deliveries(
            consumer.id, ["dead", "delivered"], Q(), after=after, upper=upper, limit=limit
        )

    assert look(rows[0], rows[4], 2) == runner.ReadKeys(rows[1:3], rows[2], False)
    assert look(rows[2], rows[3], 2) == runner.ReadKeys(rows[3:4], rows[3], True)
    assert look(rows[4], rows[4], 2) == runner.ReadKeys([], rows[4], True)


def test_a_row_that_dies_again_during_the_replay_is_not_taken_twice() -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 10)
    job = start(of(consumer))
    replay.run_slice(job, clock.now(), 4)
    Delivery.objects.filter(state="queued").update(state="dead", due_at=None)

    assert run(job, 4) == 6
    assert queued(consumer) == 6


@pytest.mark.slow("rivals take turns over many rows")
@pytest.mark.django_db(transaction=True)
def test_workers_on_the_same_replays_at_the_same_time_take_each_row_once() -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 150)
    jobs = [start(of(consumer)), start(of(consumer))]

    def work(job: Replay) -> int:
        try:
            return sum(replay.run_slice(job, clock.now(), 10) for _ in range(15))
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(work, jobs * 2))

    assert sum(counts) + sum(replay.run_slice(job, clock.now(), 1000) for job in jobs) == 150
    assert set(Delivery.objects.values_list("state", "version")) == {("queued", 2)}
    assert sum(Replay.objects.values_list("replayed_count", flat=True)) == 150
    assert_counters_are_true()


def test_deliveries_that_die_after_the_request_are_not_replayed() -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 2)
    job = start(of(consumer))
    later = make_deliveries(consumer, 1)

    assert run(job) == 2
    later[0].refresh_from_db()
    assert later[0].state == "dead"


@pytest.mark.slow("starts a process")
@pytest.mark.trap("an unbounded bulk job")
@pytest.mark.django_db(transaction=True)
def test_a_worker_killed_in_the_middle_of_a_slice_repeats_nothing(tmp_path: Path) -> None:
    (tmp_path / "failpoint").write_text("in_replay")
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 30)
    job = start(of(consumer))
    replay.run_slice(job, clock.now(), 10)
    code = "from channels_app.database import clock; from delivery import replay; "
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "HOOKSTATION_FAILPOINT": str(tmp_path / "failpoint"),
    }

    died = subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", f"{code}replay.run_due(clock.now(), 0)"],
        cwd=settings.BASE_DIR,
        env=environment,
        capture_output=True,
        timeout=300,
    )

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert queued(consumer) == 10
    assert run(job, 10) == 20
    assert set(Delivery.objects.values_list("state", "version")) == {("queued", 2)}
    assert_counters_are_true()


def test_a_replay_handles_several_consumers_and_states_in_turn() -> None:
    channel = ChannelFactory.create()
    consumers = [ConsumerFactory.create(channel=channel) for _ in range(3)]
    for consumer in consumers:
        make_deliveries(consumer, 3)
        make_deliveries(consumer, 2, state="delivered", reason="delivered", outcome="delivered")
        make_deliveries(consumer, 4, state="cancelled", reason="cancelled", outcome="")
    gone = ConsumerFactory.create(channel=channel, retired=True)
    make_deliveries(gone, 1)
    job = start({"channel": channel.slug, "states": ["dead", "delivered"]})
    assert job.matched_count == 15
    consumers[1].state = Consumer.State.RETIRED
    consumers[1].save()

    assert run(job, 4) == 10
    assert [queued(consumer) for consumer in (*consumers, gone)] == [5, 0, 5, 0]
    assert_counters_are_true()


def test_a_filter_that_matches_little_costs_bounded_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delivery.replay.runner.SCAN", 10)
    monkeypatch.setattr(runner, "MAX_SLICES", 10)
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 60)
    make_deliveries(consumer, 1, outcome="timeout")
    job = start(of(consumer, outcomes=["timeout"]))

    assert replay.run_slice(job, clock.now(), 100) == 0
    job.refresh_from_db()
    assert job.state == "running"
    assert job.cursor > 0
    assert run(job) == 1


def test_run_due_takes_one_slice_of_every_running_replay() -> None:
    consumers = [ConsumerFactory.create(), ConsumerFactory.create()]
    for consumer in consumers:
        make_deliveries(consumer, 3)
    jobs = [start(of(consumer)) for consumer in consumers]
    replay.cancel(jobs[1].id, ALICE, now=clock.now())

    assert replay.run_due(clock.now(), 3) == 3
    assert replay.run_due(clock.now(), 3) == 0
    assert_counters_are_true()


def test_an_unreadable_replay_does_not_block_others() -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 1)
    broken, sound = start(of(consumer)), start(of(consumer))
    Replay.objects.filter(id=broken.id).update(filter={"kind": "finished", "moon": "full"})

    assert replay.run_due(clock.now(), 0) == 1
    broken.refresh_from_db()
    sound.refresh_from_db()
    assert (broken.state, sound.state) == ("cancelled", "finished")


# -- pace --------------------------------------------------------------------------------------


def test_a_rate_spreads_deliveries_over_at_most_a_minute() -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 80)
    now = clock.now()
    job = start(of(consumer), rate=0.5, now=now)

    assert replay.run_slice(job, now, 1000) == 31
    due = list(Delivery.objects.filter(state="queued").order_by("id").values_list("due_at"))
    offsets = [(instant - now).total_seconds() for (instant,) in due if instant]
    assert offsets == [pytest.approx(place * 2, abs=0.11) for place in range(31)]
    assert replay.run_slice(job, now, 1000) == 0
    job.refresh_from_db()
    assert job.version == 2

    later = now + timedelta(seconds=30)
    assert replay.run_slice(job, later, 1000) == 15
    # After an hour without a run it continues at its rate and does not catch up.
    much_later = now + timedelta(hours=1)
    assert replay.run_slice(job, much_later, 1000) == 31
    newest = Delivery.objects.filter(state="queued").latest("due_at").due_at
    assert newest is not None
    assert (newest - much_later).total_seconds() == pytest.approx(60, abs=0.11)
    assert_counters_are_true()


def test_a_fast_rate_sends_several_deliveries_at_one_time() -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 200)
    now = clock.now()

    replay.run_slice(start(of(consumer), rate=1000, now=now), now, 200)

    instants = set(Delivery.objects.filter(state="queued").values_list("due_at", flat=True))
    assert len(instants) in {2, 3}
    assert max(instants) < now + timedelta(seconds=0.2)  # type: ignore[type-var, operator]  # all of them are set


# -- filters -----------------------------------------------------------------------------------


def test_each_part_of_the_filter_restricts() -> None:
    """More values of each part: tests/integration/delivery/test_filters.py."""
    consumer = ConsumerFactory.create()
    old = clock.now() - timedelta(hours=2)
    fits = {"accepted_at": old, "outcome": "timeout", "event_type": "order.created"}
    wanted = make_deliveries(consumer, 2, **fits)
    others: tuple[dict[str, Any], ...] = (
        *({"accepted_at": at} for at in (old - timedelta(seconds=1), old + timedelta(hours=1))),
        {"outcome": "server_error"},
        {"status_code": 503},
        *({"event_type": name} for name in ("order", "Order.created")),
        {"expires_at": old},
    )
    for other in others:
        make_deliveries(consumer, 1, **fits | other)
    data = of(consumer, outcomes=["timeout"], event_types=["order.*"], status_codes=[500, 404])
    data |= {"from": old.isoformat(), "to": (old + timedelta(hours=1)).isoformat()}

    job = start(data)
    assert job.matched_count == 2
    assert run(job) == 2
    assert set(Delivery.objects.filter(state="queued").values_list("id", flat=True)) == {
        row.id for row in wanted
    }


def test_ids_name_deliveries_one_by_one() -> None:
    consumer, other = ConsumerFactory.create(), ConsumerFactory.create()
    rows = make_deliveries(consumer, 3)
    foreign = make_deliveries(other, 1)
    data = {"ids": [public(rows[0]), public(rows[2]), public(foreign[0])]}

    assert replay.consumers_of(replay.parse(data), ALICE) == [consumer, other]
    assert run(start(data)) == 3
    rows[1].refresh_from_db()
    assert rows[1].state == "dead"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ([], ""),
        ("dead", ""),
        ({"chanel": "a"}, "chanel"),
        ({"\ud800": "a"}, "\\ud800"),
        ({"channel": 5}, "channel"),
        ({"channel": "No Such"}, "channel"),
        ({"channel": "a" * 101}, "channel"),
        ({"consumer": "a"}, "channel"),
        ({"channel": "a", "consumer": ["a"]}, "consumer"),
        ({"states": "dead"}, "states"),
        ({"states": []}, "states"),
        ({"states": ["queued"]}, "states"),
        ({"states": ["dead", "dead"]}, "states"),
        ({"outcomes": ["moon"]}, "outcomes"),
        ({"outcomes": [None]}, "outcomes"),
        ({"status_codes": ["503"]}, "status_codes"),
        ({"status_codes": [99]}, "status_codes"),
        ({"status_codes": []}, "status_codes"),
        ({"event_types": ["a..b"]}, "event_types"),
        ({"event_types": ["a" * 200]}, "event_types"),
        ({"event_types": [f"a.b{n}" for n in range(101)]}, "event_types"),
        ({"from": "yesterday"}, "from"),
        ({"from": "2026-01-01T00:00:00"}, "from"),
        ({"from": True}, "from"),
        ({"from": "0001-01-01T00:00:00Z"}, "from"),
        ({"to": "9999-12-31T23:59:59Z"}, "to"),
        ({"to": {}}, "to"),
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"),
        ({"ids": []}, "ids"),
        ({"ids": ["msg_0000000000000"]}, "ids"),
        ({"ids": ["dlv_1"]}, "ids"),
        ({"ids": [7]}, "ids"),
        ({"ids": [ids.to_public("dlv", n) for n in range(1001)]}, "ids"),
    ],
)
def test_an_invalid_replay_filter_is_refused(data: object, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        replay.parse(data, at="filter")

    assert caught.value.field == f"filter.{field}".rstrip(".")


def test_null_is_the_same_as_absent() -> None:
    empty = dict.fromkeys(filters.FILTER.fields)

    assert replay.parse(empty) == replay.parse({}) == replay.ReplayFilter()


def test_a_stored_filter_round_trips() -> None:
    data = {
        "channel": "a",
        "consumer": "b",
        "states": ["delivered", "dead"],
        "outcomes": ["timeout"],
        "status_codes": [503, 404],
        "event_types": ["order.*"],
        "from": "2026-01-01T00:00:00.5+02:00",
        "to": 1767225600000,
        "ids": [ids.to_public("dlv", 5)],
    }

    wanted = replay.parse(data)

    assert replay.load(Replay(filter=filters.store(wanted))) == wanted
    assert replay.parse(wanted.to_json()) == wanted


def test_a_replay_without_conditions_is_refused() -> None:
    with pytest.raises(Invalid, match="Name a channel"):
        start({})


def test_a_replay_finds_only_the_callers_consumers() -> None:
    team = TeamFactory.create()
    mine = ConsumerFactory.create(team=team)
    theirs = ConsumerFactory.create(channel=mine.channel)
    gone = ConsumerFactory.create(channel=mine.channel, retired=True, team=team)
    member = Principal("user:olga", team_id=team.id)
    whole = replay.parse({"channel": mine.channel.slug})

    assert replay.consumers_of(whole, ALICE) == [mine, theirs]
    assert replay.consumers_of(whole, member) == [mine]
    assert replay.consumers_of(replay.parse(of(mine)), member) == [mine]
    for wanted, channels in (
        (of(theirs), []),
        (of(mine), ["elsewhere"]),
        ({"channel": mine.channel.slug}, ["elsewhere"]),
        ({"channel": "nowhere"}, []),
        ({"channel": mine.channel.slug, "consumer": "nobody"}, []),
    ):
        with pytest.raises(NotFound):
            replay.consumers_of(replay.parse(wanted), replace(member, channels=channels))
    with pytest.raises(Conflict, match="retired"):
        replay.consumers_of(replay.parse(of(gone)), member)


# -- counting ----------------------------------------------------------------------------------


def test_counts_stop_at_the_limit_and_are_marked_inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SCAN_ROWS", 20)
    channel = ChannelFactory.create()
    small, large, last = (ConsumerFactory.create(channel=channel) for _ in range(3))
    make_deliveries(small, 5, outcome="timeout")
    make_deliveries(large, 40, outcome="timeout")
    make_deliveries(last, 2, outcome="timeout")
    now = clock.now()

    def count(**data: Any) -> tuple[int, bool]:
        wanted = replay.parse({"channel": channel.slug, **data})
        found = replay.count(wanted, replay.consumers_of(wanted, ALICE), now)
        return found.number, found.exact

    assert count() == (47, False)  # estimated from the counters
    assert count(outcomes=["timeout"]) == (5 + 16, False)
    assert count(consumer=small.client_id, outcomes=["timeout"]) == (5, True)
    assert count(consumer=large.client_id, outcomes=["gone"]) == (0, False)
    wanted = replay.parse({"channel": channel.slug, "outcomes": ["timeout"]})
    sample = replay.sample(wanted, replay.consumers_of(wanted, ALICE), now)
    assert [row.consumer_id for row in sample] == [small.id] * 5 + [large.id] * 5


def test_the_request_and_its_cancellation_are_audited() -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 2)
    job = start(of(consumer, outcomes=["server_error"]), rate=5)
    replay.cancel(job.id, Principal("key:abc", "enough"), now=clock.now())

    cancelled, created = AuditEntry.objects.order_by("-id")
    assert (created.action, created.actor) == ("replay.create", "user:alice")
    assert created.after == {
        "filter": {"kind": "finished", **of(consumer, states=["dead"], outcomes=["server_error"])},
        "matched": 2,
        "rate_per_second": 5.0,
    }
    assert (cancelled.action, cancelled.actor, cancelled.reason) == (
        "replay.cancel",
        "key:abc",
        "enough",
    )
    assert cancelled.before == {"state": "running", "replayed": None}
    assert cancelled.after == {"state": "cancelled", "replayed": 0}
    with pytest.raises(Conflict, match="cancelled already"):
        replay.cancel(job.id, ALICE, now=clock.now())
    with pytest.raises(NotFound):
        replay.cancel(new_id(), ALICE, now=clock.now())


# -- backfill ----------------------------------------------------------------------------------


def backfill(consumer: Consumer, **data: Any) -> Replay:
    now = clock.now()
    values = BackfillFilterSerializer().read(data)
    return replay.create(
        replay.backfill(values, consumer, ALICE, now=now), [consumer], ALICE, now=now
    )


@pytest.mark.trap("a message without consumers is lost")
def test_a_backfill_gives_a_late_consumer_missed_messages() -> None:
    early = ConsumerFactory.create()
    make_deliveries(early, 25)
    late = ConsumerFactory.create(channel=early.channel)
    known = make_deliveries(late, 2)
    job = backfill(late)
    assert job.matched_count == 25

    assert run(job, 10) == 25
    assert Delivery.objects.filter(consumer=late).count() == 27
    made = Delivery.objects.filter(consumer=late, state="queued").first()
    assert made is not None
    assert (made.reason, made.replay_id, made.attempt_count) == ("accepted", None, 0)
    assert set(Delivery.objects.filter(id__in=[row.id for row in known]).values_list("state")) == {
        ("dead",)
    }
    assert set(
        Message.objects.filter(deliveries__consumer=early).values_list("consumer_count", flat=True)
    ) == {2}
    assert run(backfill(late)) == 0
    assert_counters_are_true()


def test_a_backfill_applies_the_consumers_filter() -> None:
    consumer = ConsumerFactory.create(event_types=["order.*"])
    now = clock.now()
    old = now - timedelta(hours=3)
    make_messages(consumer, 1, event_type="order.created")
    make_messages(consumer, 2, event_type="order.paid")
    make_messages(consumer, 4, event_type="user.created")
    make_messages(consumer, 8, event_type="order.paid", state="accepted")
    make_messages(consumer, 16, event_type="order.paid", state="cancelled")
    make_messages(consumer, 32, event_type="order.paid", expires_at=now)
    make_messages(consumer, 64, event_type="order.paid", accepted_at=old)
    make_messages(ConsumerFactory.create(), 128, event_type="order.paid")

    recent = {"from": (now - timedelta(hours=1)).isoformat()}
    assert backfill(consumer, **recent, event_types=["order.paid"]).matched_count == 2
    assert backfill(consumer, **recent).matched_count == 3
    assert backfill(consumer, to=(now - timedelta(hours=1)).isoformat()).matched_count == 64
    job = backfill(consumer)
    assert job.matched_count == 67
    assert run(job, 30) == 67
    assert_counters_are_true()


def test_a_scheduled_message_waits_for_its_time_in_a_backfill_too() -> None:
    consumer = ConsumerFactory.create()
    later = clock.now() + timedelta(hours=1)
    make_messages(consumer, 1, due_at=later, priority=8, ordering_key="k")

    run(backfill(consumer))

    row = Delivery.objects.get(consumer=consumer)
    assert (row.due_at, row.priority, row.ordering_key) == (later, 8, "k")


def test_a_concurrent_fan_out_makes_the_slice_roll_back_and_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = ConsumerFactory.create()
    messages = make_messages(consumer, 3)
    job = backfill(consumer)
    rivals = iter([messages[1]])
    real = Delivery.objects.bulk_create

    def rival_first(rows: list[Delivery], **options: Any) -> Any:
        for message in rivals:
            rival = copy(next(row for row in rows if row.message_id == message.id))
            rival.id = new_id()
            real([rival])
        return real(rows, **options)

    monkeypatch.setattr(Delivery.objects, "bulk_create", rival_first)

    assert run(job) == 3
    assert_counters_are_true()
