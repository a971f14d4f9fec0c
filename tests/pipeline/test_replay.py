"""Replay from the lake: the requested messages only, each once, whatever interrupts the job."""

import itertools
import json
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import (
    AuditEntry,
    Channel,
    ConfigVersion,
    Consumer,
    Message,
    MessageBody,
)
from delivery.models import (
    Attempt,
    Delivery,
    PipelineRun,
    Replay,
    Restore,
    Restored,
    RestoredMessage,
)
from delivery.replay import restore
from pipeline.broker import runs
from pipeline.execution.job import JobError
from pipeline.jobs import replay as job
from pipeline.settings import Settings
from pipeline.transforms import selection
from tests.pipeline import archiving, month
from tests.pipeline.conftest import RunJob
from tests.pipeline.month import Month
from tests.support.counts import assert_counters_are_true

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def made(chosen: Settings, spark: Any) -> Month:
    """A month of which all but the last days is only in the lake."""
    found = month.make(messages=250)
    for row in found.consumers.values():
        Consumer.objects.filter(id=row.id).update(updated_at=row.created_at)
    Channel.objects.update(updated_at=found.since)
    ConfigVersion.bump()
    archiving.archive(chosen, found.until - timedelta(days=5))
    return found


@pytest.fixture(autouse=True)
def _a_broker_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the sweep whenever the job waits."""
    monkeypatch.setattr(job, "_pause", admit)


def admit() -> int:
    return sum(restore.run_each(clock.now(), 0))


def reconciliation_is_clean() -> None:
    """Check that the broker's reconciliation finds nothing but late deliveries."""
    out = StringIO()
    with suppress(SystemExit):
        call_command("reconcile", "--json", "--grace", "5m", stdout=out)
    findings = json.loads(out.getvalue())["findings"]
    assert [it for it in findings if it["check"] != "late"] == []


def wanted_by(made: Month, name: str) -> list[Message]:
    """Messages that a consumer got, or would have got if registered earlier."""
    channel = made.consumers[name].channel_id
    return [it for it in made.messages if it.channel_id == channel]


@pytest.mark.mysql
def test_messages_come_back_as_they_were_counted_and_go_with_their_deliveries(
    made: Month, run_job: RunJob
) -> None:
    since, until = made.since + timedelta(days=3), made.since + timedelta(days=12)
    wanted = {it.id: it for it in wanted_by(made, "steady") if since <= it.accepted_at < until}
    assert not Message.objects.filter(id__in=wanted).exists()

    window = {"since": since.isoformat(), "until": until.isoformat()}
    assert run_job("replay", consumer="orders/steady", dry_run=True, **window) == {
        "messages": len(wanted),
        "bytes": sum(it.body_bytes for it in wanted.values()),
        "first": min(it.accepted_at for it in wanted.values()).isoformat(),
        "last": max(it.accepted_at for it in wanted.values()).isoformat(),
    }
    assert not Restore.objects.exists()
    assert not Restored.objects.exists()

    found = run_job("replay", consumer="orders/steady", reason="it lost them", **window)

    assert (found["queued"], found["left_out"]) == (len(wanted), 0)
    back = Message.objects.in_bulk(list(wanted))
    assert back.keys() == wanted.keys()
    for key, message in back.items():
        for name in ("event_type", "priority", "ordering_key", "accepted_at", "headers", "version"):
            assert getattr(message, name) == getattr(wanted[key], name)
        assert bytes(MessageBody.objects.get(message_id=key).data) == made.bodies[key]
    rows = Delivery.objects.filter(message_id__in=wanted)
    assert {row.message_id for row in rows} == wanted.keys()
    assert {(row.state, row.reason, row.consumer_id) for row in rows} == {
        ("queued", "replayed", made.consumers["steady"].id)
    }
    replay = Replay.objects.get()
    assert {row.replay_id for row in rows} == {replay.id}
    assert (replay.replayed_count, replay.matched_count) == (len(wanted), len(wanted))
    assert not Restored.objects.exists()
    assert RestoredMessage.objects.count() == len(wanted)
    begun, ended = AuditEntry.objects.filter(target=f"replay:{replay}").order_by("id")
    assert (begun.actor, begun.reason, ended.action) == ("tests", "it lost them", "replay.finished")
    assert_counters_are_true()
    reconciliation_is_clean()
    if connection.vendor == "sqlite":  # an audit takes long, and has the same statements elsewhere
        audit = run_job("audit", whole_since=made.since.isoformat())
        assert (audit["gap"], audit["messages"]) == (0, len(made.messages))

    keep, *others = sorted(back)
    Delivery.objects.filter(message_id__in=others).delete()
    assert sum(restore.forget()) == len(others)
    assert set(RestoredMessage.objects.values_list("message_id", flat=True)) == {keep}
    assert set(Message.objects.filter(id__in=back).values_list("id", flat=True)) == {keep}
    assert not MessageBody.objects.filter(message_id__in=others).exists()


def test_a_consumer_that_came_late_is_filled_up_once(made: Month, run_job: RunJob) -> None:
    late = made.consumers["late"]
    missed = {it.id for it in wanted_by(made, "late") if it.accepted_at < made.joined_at}
    here = Message.objects.filter(id__in=missed)
    counts = dict(here.values_list("id", "consumer_count"))

    found = run_job("replay", consumer="orders/late", only_missing=True)

    assert found["queued"] == len(missed)
    assert (
        set(
            Delivery.objects.filter(consumer=late, reason="replayed").values_list(
                "message_id", flat=True
            )
        )
        == missed
    )
    for key, count in counts.items():
        assert Message.objects.get(id=key).consumer_count == count + 1
    reconciliation_is_clean()
    assert run_job("replay", consumer="orders/late", only_missing=True)["queued"] == 0
    assert_counters_are_true()


def test_only_what_never_arrived_or_is_named(made: Month, run_job: RunJob) -> None:
    broken = made.consumers["broken"].id
    dead = {
        row.message_id
        for row in made.deliveries
        if row.consumer_id == broken and row.state == "dead"
    }
    found = run_job("replay", consumer="orders/broken", only_dead=True)
    assert found["queued"] == len(dead) > 0
    queued = Delivery.objects.filter(consumer=broken, reason="replayed")
    assert set(queued.values_list("message_id", flat=True)) == dead
    reconciliation_is_clean()

    some = wanted_by(made, "books")[:3]
    names = [ids.to_public(ids.MESSAGE, it.id) for it in some]
    assert run_job("replay", consumer="invoices/books", message=names[:2])["queued"] == 2
    key = some[2].ordering_key
    matching = [it for it in wanted_by(made, "books") if it.ordering_key == key]
    found = run_job("replay", consumer="invoices/books", ordering_key=[key], dry_run=True)
    on_their_way = Delivery.objects.filter(
        consumer=made.consumers["books"], state="queued", message__in=matching
    )
    assert found["messages"] == len(matching) - on_their_way.count()
    kind = some[0].event_type
    matching = [it for it in wanted_by(made, "slow") if it.event_type == kind]
    found = run_job("replay", consumer="invoices/slow", event_type=[kind], dry_run=True)
    assert 0 < found["messages"] <= len(matching)


def test_the_same_again_sends_it_again_unless_its_run_was_killed_after_the_end(
    made: Month, run_job: RunJob
) -> None:
    """Each run is a new request, once the one before has seen its end."""
    asked = {"consumer": "orders/steady", "until": (made.since + timedelta(days=9)).isoformat()}
    rows = Delivery.objects.filter(consumer=made.consumers["steady"], reason="replayed")
    first = run_job("replay", **asked)
    keys = set(rows.values_list("id", flat=True))
    now = clock.now()
    for row in rows:
        Attempt.objects.create(
            id=row.id + 1, delivery=row, number=1, started_at=now, outcome="delivered"
        )
    rows.update(state="delivered", due_at=None, finished_at=now, attempt_count=1)

    PipelineRun.objects.update(state="failed")  # it did not see its end
    heard = run_job("replay", **asked)
    assert (heard["queued"], heard["restore"]) == (first["queued"], first["restore"])
    assert not rows.filter(state="queued").exists()

    again = run_job("replay", **asked)
    assert again["restore"] != first["restore"]
    assert first["queued"] == again["queued"] == len(keys)
    assert keys == set(rows.filter(state="queued").values_list("id", flat=True))

    assert run_job("replay", **asked)["queued"] == 0  # all are in flight


@pytest.mark.mysql
def test_a_run_that_was_killed_is_gone_on_with(
    made: Month, run_job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "BATCH_ROWS", 7)
    bring, brought = selection.Restore.stage, []

    def die(self: Any, context: Any, rows: Any) -> None:
        bring(self, context, rows)
        brought.append(len(rows))
        if len(brought) == 5:
            raise KeyboardInterrupt

    asked = {"consumer": "orders/late", "only_missing": True}
    missed = {it.id for it in wanted_by(made, "late") if it.accepted_at < made.joined_at}
    with monkeypatch.context() as patch:
        patch.setattr(selection.Restore, "stage", die)
        with pytest.raises(KeyboardInterrupt):
            run_job("replay", **asked)
    assert admit() == 35
    (row,) = Restore.objects.all()
    assert (row.state, row.staged_count, row.queued_count) == ("staging", 35, 35)
    run_job("replay", **asked)
    row.refresh_from_db()
    assert (row.state, row.queued_count) == ("finished", len(missed))
    assert row.matched_count == len(missed)
    made_ = Delivery.objects.filter(consumer=made.consumers["late"], reason="replayed")
    assert sorted(made_.values_list("message_id", flat=True)) == sorted(missed)
    reconciliation_is_clean()


def test_what_is_cancelled_is_not_sent(
    made: Month, run_job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "BATCH_ROWS", 10)
    bring, brought = selection.Restore.stage, []

    def stop(self: Any, context: Any, rows: Any) -> None:
        bring(self, context, rows)
        brought.append(len(rows))
        if len(brought) == 2:
            admit()
        if len(brought) == 4:
            context.run.stop()

    monkeypatch.setattr(selection.Restore, "stage", stop)
    with pytest.raises(runs.RunCancelled):
        run_job("replay", consumer="orders/steady")
    (row,) = Restore.objects.all()
    assert (row.state, row.staged_count, row.queued_count) == ("cancelled", 40, 20)
    assert not Restored.objects.exists()
    assert admit() == 0
    assert Delivery.objects.filter(reason="replayed").count() == 20


def test_what_is_stopped_on_the_console_ends_the_run(
    made: Month, run_job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        row = Restore.objects.get()
        restore.cancel(row.id, Principal("user:olga", "enough"), now=clock.now())

    monkeypatch.setattr(job, "_pause", stop)
    with pytest.raises(JobError, match="stopped on the console"):
        run_job("replay", consumer="orders/steady")
    assert not Restored.objects.exists()
    assert not Delivery.objects.filter(reason="replayed").exists()


def test_a_rate_spreads_them(made: Month, run_job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    at = [clock.now()]

    def later() -> None:
        at[0] += timedelta(seconds=1)
        sum(restore.run_each(at[0], 0))

    monkeypatch.setattr(job, "_pause", later)
    found = run_job("replay", consumer="orders/steady", rate="10/s")
    due = sorted(row.due_at for row in Delivery.objects.filter(reason="replayed") if row.due_at)
    assert len(due) == found["queued"] > 60
    assert (due[-1] - due[0]).total_seconds() == pytest.approx(len(due) / 10, abs=1.5)
    assert all(
        behind - before <= timedelta(seconds=0.3) for before, behind in itertools.pairwise(due)
    )


def test_bodies_that_nobody_can_open_are_refused(
    made: Month, run_job: RunJob, chosen: Settings
) -> None:
    """Their encryption key was removed from the installation."""
    message = Message.objects.order_by("id").first()
    assert message is not None
    MessageBody.objects.filter(message_id=message.id).update(key_id="0badc0de")
    Delivery.objects.filter(message=message).exclude(state__in=archiving.FINISHED).delete()
    archiving.archive(chosen, made.until)
    name = ids.to_public(ids.MESSAGE, message.id)
    consumer = Consumer.objects.filter(channel_id=message.channel_id).first()
    assert consumer is not None
    who = f"{consumer.channel.slug}/{consumer.client_id}"
    with pytest.raises(JobError, match="0badc0de"):
        run_job("replay", consumer=who, message=[name])
    assert Restore.objects.get().state == "refused"
    assert not Delivery.objects.filter(reason="replayed").exists()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"consumer": "orders/nobody"}, "no consumer"),
    ({"consumer": "orders/steady", "rate": "fast"}, "no rate"),
    ({"consumer": "orders/steady", "message": ["msg_1"]}, "no id"),
    ({"consumer": "orders/steady", "since": "soon"}, "is not an instant"),
    ({"consumer": "orders/gone"}, "was removed"),
]


def test_what_cannot_be_done_is_refused(run_job: RunJob) -> None:
    made = month.make(messages=5)
    Consumer.objects.filter(id=made.consumers["late"].id).update(client_id="gone", state="retired")
    for options, why in REFUSED:
        with pytest.raises(JobError, match=why):
            run_job("replay", **options)
