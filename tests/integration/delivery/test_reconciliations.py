"""Automatic reconciliations: when they run, what is stored, and who is notified."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F
from django.test import Client

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Message, MessageBody
from delivery.core.reconciliation import EXPLANATIONS, Check
from delivery.maintenance import reconciliations, sweeps
from delivery.maintenance.sweeps import SweepScheduler
from delivery.models import AccountingReport, Counter, Delivery, PumpSlot
from delivery.queue import fanout
from tests.support.console import operator, page_url
from tests.support.pumping import make_channel, make_consumer, publish

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"


@pytest.fixture(autouse=True)
def _pump() -> None:
    """A pump that has been running for a while."""
    beats(clock.now() - timedelta(minutes=6))


def beats(since: datetime) -> None:
    # It lives as long as the test, on a slow machine too.
    last = clock.now() + timedelta(minutes=5)
    PumpSlot.objects.all().delete()
    PumpSlot.objects.create(
        cluster="x", ordinal=0, generation=1, host="h", pid=1, started_at=since, heartbeat_at=last
    )


def lose_one() -> Delivery:
    """Delete one of two deliveries, and reduce its counters."""
    channel = make_channel()
    consumer = make_consumer(channel, NOWHERE)
    publish(channel, b"1", b"2", delay_ms=3_600_000)
    fanout.fan_out(100, 0)
    row = Delivery.objects.earliest("id")
    Delivery.objects.filter(id=row.id).delete()
    Counter.add({(consumer.id, "queued"): -1, (consumer.id, "made"): -1}, 0)
    return row


def run(steps: Iterator[int]) -> None:
    assert not any(steps)


def test_both_audits_keep_what_they_found() -> None:
    row = lose_one()
    run(reconciliations.recent())
    run(reconciliations.everything())
    name = ids.to_public(ids.MESSAGE, row.message_id)
    for report in AccountingReport.objects.all():
        assert (report.gap, report.checks) == (1, {"fan_out": 1})
        assert (report.message_count, report.delivery_count) == (2, 1)
        assert report.states == {"queued": 1}
        assert report.findings[0]["ids"] == [name]
    assert set(reconciliations.newest()) == {"recent", "everything"}


def test_an_audit_runs_when_it_is_due_and_not_before() -> None:
    run(reconciliations.recent())
    run(reconciliations.recent())
    assert AccountingReport.objects.count() == 1
    then = clock.now() - timedelta(minutes=16)
    AccountingReport.objects.update(started_at=then)
    run(reconciliations.recent())
    assert AccountingReport.objects.count() == 2


def test_just_after_a_start_nothing_is_audited() -> None:
    beats(clock.now())
    run(reconciliations.recent())
    run(reconciliations.everything())
    assert not AccountingReport.objects.exists()


def test_the_last_hours_are_the_last_hours() -> None:
    lose_one()
    hours = 3 * 3_600_000 << ids.TIME_SHIFT
    Delivery.objects.update(message_id=F("message_id") - hours)
    Message.objects.update(id=F("id") - hours)
    MessageBody.objects.update(message_id=F("message_id") - hours)
    run(reconciliations.recent())
    report = AccountingReport.objects.get()
    assert (report.message_count, report.gap) == (0, 0)


def test_the_steward_runs_them_among_its_sweeps() -> None:
    mine = SweepScheduler(sweeps.AUDITS)
    while set(reconciliations.newest()) != {"recent", "everything"}:
        mine.turn()


def test_old_reports_go() -> None:
    run(reconciliations.recent())
    run(reconciliations.everything())
    assert reconciliations.forget(clock.now() + timedelta(days=8)) == 1
    assert AccountingReport.objects.get().span == "everything"
    assert reconciliations.forget(clock.now() + timedelta(days=401)) == 1


def scraped(client: Client) -> dict[str, float]:
    lines = client.get("/metrics").content.decode().splitlines()
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("hookstation_reconciliation")
    }


def test_monitoring_hears_of_it_until_a_clean_audit_is_kept(client: Client) -> None:
    assert scraped(client)['hookstation_reconciliation_timestamp_seconds{span="recent"}'] == 0
    row = lose_one()
    run(reconciliations.everything())
    found = scraped(client)
    assert found["hookstation_reconciliation_gap"] == 1
    assert found['hookstation_reconciliation_findings{check="fan_out"}'] == 1
    assert found['hookstation_reconciliation_findings{check="missing"}'] == 0
    now = clock.now().timestamp()
    assert found[
        'hookstation_reconciliation_timestamp_seconds{span="everything"}'
    ] == pytest.approx(now, abs=60)
    Message.objects.filter(id=row.message_id).update(consumer_count=0)
    call_command("reconcile", "--keep")
    assert scraped(client)["hookstation_reconciliation_gap"] == 0


def test_what_is_kept_must_be_everything() -> None:
    with pytest.raises(CommandError, match="everything"):
        call_command("reconcile", "--keep", "--since", "2h")


def test_the_console_names_the_rows_and_the_way_out(client: Any) -> None:
    row = lose_one()
    run(reconciliations.everything())
    client = operator()
    text = client.get(page_url(AccountingReport.objects.get())).content.decode()
    name = ids.to_public(ids.MESSAGE, row.message_id)
    assert f"/admin/channels_app/message/{name}/change/" in text
    assert f"/admin/channels_app/message/?channel={row.channel_id}" in text
    assert EXPLANATIONS[Check.FAN_OUT].remedy[:40] in text
    overview = client.get("/admin/").content.decode()
    assert "mismatched rows in the last audit" in overview
