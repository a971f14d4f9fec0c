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
from delivery.models import Counter, Delivery, PumpSlot, ReconciliationReport
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


def test_both_kinds_of_reconciliation_store_their_report() -> None:
    row = lose_one()
    run(reconciliations.recent())
    run(reconciliations.everything())
    name = ids.to_public(ids.MESSAGE, row.message_id)
    for report in ReconciliationReport.objects.all():
        assert (report.gap, report.checks) == (1, {"fan_out": 1})
        assert (report.message_count, report.delivery_count) == (2, 1)
        assert report.states == {"queued": 1}
        assert report.findings[0]["ids"] == [name]
    assert set(reconciliations.newest()) == {"recent", "everything"}


def test_a_reconciliation_runs_when_it_is_due() -> None:
    run(reconciliations.recent())
    run(reconciliations.recent())
    assert ReconciliationReport.objects.count() == 1
    then = clock.now() - timedelta(minutes=16)
    ReconciliationReport.objects.update(started_at=then)
    run(reconciliations.recent())
    assert ReconciliationReport.objects.count() == 2


def test_no_reconciliation_runs_right_after_a_start() -> None:
    beats(clock.now())
    run(reconciliations.recent())
    run(reconciliations.everything())
    assert not ReconciliationReport.objects.exists()


def test_a_recent_reconciliation_covers_only_recent_rows() -> None:
    lose_one()
    hours = 3 * 3_600_000 << ids.TIME_SHIFT
    Delivery.objects.update(message_id=F("message_id") - hours)
    Message.objects.update(id=F("id") - hours)
    MessageBody.objects.update(message_id=F("message_id") - hours)
    run(reconciliations.recent())
    report = ReconciliationReport.objects.get()
    assert (report.message_count, report.gap) == (0, 0)


def test_the_maintenance_process_runs_reconciliations() -> None:
    mine = SweepScheduler(sweeps.AUDITS)
    while set(reconciliations.newest()) != {"recent", "everything"}:
        mine.turn()


def test_old_reports_are_deleted() -> None:
    run(reconciliations.recent())
    run(reconciliations.everything())
    assert reconciliations.forget(clock.now() + timedelta(days=8)) == 1
    assert ReconciliationReport.objects.get().span == "everything"
    assert reconciliations.forget(clock.now() + timedelta(days=401)) == 1


def scraped(client: Client) -> dict[str, float]:
    lines = client.get("/metrics").content.decode().splitlines()
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("hookstation_reconciliation")
    }


def test_metrics_show_a_gap_until_a_clean_reconciliation_is_stored(client: Client) -> None:
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


def test_only_a_full_reconciliation_can_be_stored() -> None:
    with pytest.raises(CommandError, match="everything"):
        call_command("reconcile", "--keep", "--since", "2h")


def test_the_console_names_mismatched_rows_and_a_remedy(client: Any) -> None:
    row = lose_one()
    run(reconciliations.everything())
    client = operator()
    text = client.get(page_url(ReconciliationReport.objects.get())).content.decode()
    name = ids.to_public(ids.MESSAGE, row.message_id)
    assert f"/admin/channels_app/message/{name}/change/" in text
    assert f"/admin/channels_app/message/?channel={row.channel_id}" in text
    assert EXPLANATIONS[Check.FAN_OUT].remedy[:40] in text
    overview = client.get("/admin/").content.decode()
    assert "mismatched rows in the last reconciliation" in overview
