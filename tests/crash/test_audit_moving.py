"""Reconciliation beside a running broker: changes during a scan are not reported as errors."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.db.models import F

from channels_app.database import clock, transactions
from channels_app.models import Channel, ConfigVersion, Consumer, Message, Team
from delivery.core.reconciliation import Check
from delivery.maintenance import checks, reconciliation_scope
from delivery.maintenance import reconciliations as auditors
from delivery.maintenance.reconciliations import Reconciler, Wanted
from delivery.models import Counter, Delivery
from tests.support import broker as brokers
from tests.support.broker import Broker
from tests.support.factories import ConsumerFactory, DeliveryFactory, TeamFactory
from tests.support.receiver import Receiver, Reply

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mysql]
LONG = timedelta(minutes=10)
AUDITS = 10
LOOK = f"""
from datetime import timedelta
from io import StringIO
from django.core.management import call_command
from django.utils import timezone
from channels_app.models import Channel, Consumer, ConfigVersion
# As old as they would be: of consumers that have just changed nobody can say what they wanted.
then = timezone.now() - timedelta(hours=1)
Channel.objects.update(updated_at=then)
Consumer.objects.update(updated_at=then)
ConfigVersion.bump()
for place in range({AUDITS}):
    out = StringIO()
    try:
        call_command("reconcile", "--limit-ids", "3", stdout=out)
    except SystemExit:
        print("OFF in audit", place, out.getvalue())
print("last:", out.getvalue())
"""


@pytest.mark.e2e
def test_changes_during_a_reconciliation_are_no_mismatch(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.script("/flaky", [Reply(500), Reply(200), Reply(503)] * 2000)
    with brokers.running(tmp_path) as broker:
        broker.call("PUT", "/channels/orders", 201, json={})
        for name, path in (("well", "/well"), ("flaky", "/flaky"), ("dead", "/status/500")):
            broker.call(
                "PUT",
                f"/channels/orders/consumers/{name}",
                201,
                json={"url": receiver.url(path), "retry": [0.05, 0.05], "max_attempts": 3},
            )
        done = threading.Event()
        publisher = threading.Thread(target=publish, args=(broker, done))
        publisher.start()
        try:
            said = broker.manage("shell", "-c", LOOK)
        finally:
            done.set()
            publisher.join()
        assert "OFF" not in said, said
        assert "All is accounted for" in said
        assert len(receiver.requests("/well")) > AUDITS


def publish(broker: Broker, done: threading.Event) -> None:
    """Publish without a pause; meanwhile replay dead letters and cancel some messages."""
    for place in range(100_000):
        if done.is_set():
            return
        items = [{"body": "x", "event_type": "order.paid"} for _ in range(20)]
        answer = broker.call("POST", "/channels/orders/messages/batch", 207, json=items)
        if place % 5 == 0:
            # The broker refuses it while many replays run, as happens on a slow machine.
            replay = {"filter": {"channel": "orders"}}
            broker.http.post(f"{broker.base}/replays", json=replay, timeout=60)
            name = answer["items"][0]["id"]
            broker.http.delete(f"{broker.base}/messages/{name}", timeout=60)


def meanwhile(work: Callable[[], object]) -> None:
    """Run and commit the work in another thread, on its own connection."""

    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@pytest.mark.mariadb
def test_rows_written_during_a_scan_belong_to_the_next_one() -> None:
    """A consumer registers and gets earlier messages between two statements of a scan."""
    rows = [DeliveryFactory.create() for _ in range(3)]

    @transaction.atomic
    def come_late() -> None:
        for row in rows:
            late = ConsumerFactory.create(channel=row.channel)
            DeliveryFactory.create(consumer=late, message=row.message)
        Message.objects.update(consumer_count=2)

    reconciler = Reconciler(Wanted(), now=clock.now(), most_ids=5)
    with transactions.snapshot():
        reconciler.config.refresh()
        meanwhile(come_late)
        stretch = reconciliation_scope.next_key_range(reconciler.scope, 0)
        checks.check(reconciler.result, reconciler.scope, stretch, reconciler.config)
    assert reconciler.result.looked["deliveries"] == 3
    assert reconciler.result.off == {}
    assert Delivery.objects.count() == 6


@pytest.mark.mariadb
def test_a_scan_restores_the_isolation_level() -> None:
    """After a scan, transactions again see each other's commits."""
    with transactions.snapshot():
        reconciliation_scope.newest()
    with transaction.atomic():
        assert not Team.objects.exists()
        meanwhile(TeamFactory.create)
        assert Team.objects.exists()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Delivery:
    """A delivery that is long overdue, while nothing delays its consumer."""
    monkeypatch.setattr(auditors, "CHECK_INTERVAL_S", 0.0)
    row = DeliveryFactory.create(due_at=clock.now() - LONG)
    Channel.objects.update(updated_at=clock.now() - LONG)
    Consumer.objects.update(updated_at=clock.now() - LONG)
    return row


def two_scans(between: Callable[[], object]) -> Reconciler:
    """Reconcile to the end, with a change after the first scan."""
    reconciler = Reconciler(Wanted(grace=LONG / 2), now=clock.now(), most_ids=5)
    steps = reconciler.steps()
    next(steps)
    between()
    assert list(steps)[-1] == 1.0
    return reconciler


def nothing(waiting: Delivery) -> None:
    """Do nothing."""


def is_taken(waiting: Delivery) -> None:
    now = clock.now()
    Delivery.objects.filter(id=waiting.id).update(
        state="in_flight", attempt_count=1, due_at=now + timedelta(seconds=5)
    )
    Counter.add({(waiting.consumer_id, "queued"): -1, (waiting.consumer_id, "in_flight"): 1}, 0)


def another_arrives(waiting: Delivery) -> None:
    """A newer delivery shows that the consumer is served, and that the overdue one is next."""
    DeliveryFactory.create(consumer=waiting.consumer, due_at=clock.now() + LONG, cancelled=True)


def consumer_is_paused(waiting: Delivery) -> None:
    Consumer.objects.update(state="paused", version=F("version") + 1)
    ConfigVersion.bump()


@pytest.mark.parametrize(
    ("between", "number"),
    [(nothing, 1), (is_taken, 0), (another_arrives, 0), (consumer_is_paused, 0)],
)
def test_a_row_that_changes_between_two_scans_is_not_stuck(
    waiting: Delivery, between: Callable[[Delivery], None], number: int
) -> None:
    reconciler = two_scans(lambda: between(waiting))
    assert reconciler.result.by_check()[Check.LATE] == reconciler.result.gap == number


def test_a_row_that_becomes_due_between_scans_is_not_late(waiting: Delivery) -> None:
    rows = Delivery.objects.filter(id=waiting.id)
    rows.update(due_at=clock.now() + LONG)
    reconciler = two_scans(lambda: rows.update(due_at=waiting.due_at))
    assert reconciler.result.off == {}


def test_a_lease_that_begins_during_a_reconciliation_is_not_too_long(
    waiting: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def an_hour_passes() -> None:
        later = clock.now() + timedelta(hours=1)
        monkeypatch.setattr(clock, "now", lambda: later)
        is_taken(waiting)

    assert two_scans(an_hour_passes).result.off == {}
