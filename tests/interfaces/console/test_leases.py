"""The console's view of leases: which worker holds which delivery, and revoking a lease."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer
from delivery.admin.consumer import WORKERS_SHOWN
from delivery.models import Attempt, PullWorker
from tests.support import console
from tests.support.counts import assert_counters_are_true
from tests.support.factories import DeliveryFactory
from tests.support.pulling import Worker, lapse, row_of, waiting

pytestmark = pytest.mark.django_db


def part(page: str) -> str:
    """Return the leases section of a consumer's page."""
    return page.partition('id="leases"')[2].partition("</section>")[0]


def test_a_consumers_page_lists_its_leases(operator: Client) -> None:
    consumer = waiting(b"x", b"y")
    page = console.page_url(consumer)
    assert "No worker holds a lease." in part(console.look(operator, page))
    received = Worker(consumer).receive(worker_id="<b>printer</b>", max=1)
    shown = part(console.look(operator, page))
    assert received[0]["delivery_id"] in shown
    assert "&lt;b&gt;printer" in shown
    assert "expired" not in shown
    lapse(consumer)
    assert "expired" in part(console.look(operator, page))
    PullWorker.objects.all().delete()
    assert "not known any more" in part(console.look(operator, page))


def workers(page: str) -> str:
    """Return the workers section of a consumer's page."""
    return page.partition('id="workers"')[2].partition("</section>")[0]


def test_a_consumer_without_workers_explains_how_to_start(operator: Client) -> None:
    consumer = waiting(b"x")
    page = console.page_url(consumer)
    assert "No workers yet" in workers(console.look(operator, page))
    assert "/receive" in workers(console.look(operator, page))
    Worker(consumer).receive(worker_id="printer")
    shown = workers(console.look(operator, page))
    assert "No workers yet" not in shown
    assert "printer" in shown


def test_a_consumers_workers_are_on_pages_and_can_be_searched(operator: Client) -> None:
    consumer = waiting(b"x")
    now = clock.now()
    for number in range(WORKERS_SHOWN + 1):
        seen = now - timedelta(minutes=number)
        PullWorker.objects.create(
            id=-number, consumer=consumer, name=f"printer-{number:02}", seen_at=seen, keys_until=now
        )
    page = console.page_url(consumer)

    first, second = (workers(console.look(operator, f"{page}?workers={n}")) for n in (1, 2))

    assert "printer-00" in first
    assert f"printer-{WORKERS_SHOWN}" not in first
    assert f"printer-{WORKERS_SHOWN}" in second
    assert 'href="?workers=2#workers"' in first
    found = operator.get(console.list_url(Consumer, "?q=printer-07")).context["cl"]
    assert list(found.result_list) == [consumer]


def test_workers_are_shown_to_users_who_may_view_them() -> None:
    consumer = waiting(b"x")
    Worker(consumer).receive(worker_id="printer")
    client = console.staff("view_consumer")

    assert 'id="workers"' not in console.look(client, console.page_url(consumer))
    found = client.get(console.list_url(Consumer, "?q=printer")).context["cl"]
    assert list(found.result_list) == []


def test_an_operator_releases_a_lease(operator: Client) -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive(worker_id="printer")
    row = row_of(consumer)
    shown = console.look(operator, console.page_url(row))
    assert "printer" in shown
    button = reverse("admin:delivery_delivery_release", args=[row.pk])
    assert button in shown

    operator.post(button, {"reason": "the printer burns"})

    row = row_of(consumer)
    assert (row.state, row.reason, row.lease_owner) == ("queued", "interrupted", None)
    assert (row.failure_count, Attempt.objects.get().outcome) == (0, "interrupted")
    entry = AuditEntry.objects.get(action="delivery.release")
    assert (entry.target, entry.reason) == (f"delivery:{row}", "the printer burns")
    assert worker.say("ack", one["lease"])[1] == {one["lease"]: "expired"}
    assert len(worker.receive()) == 1
    assert_counters_are_true()


def test_a_lease_of_a_pump_cannot_be_released(operator: Client) -> None:
    delivery = DeliveryFactory.create(in_flight=True)
    button = reverse("admin:delivery_delivery_release", args=[delivery.pk])
    assert button not in console.look(operator, console.page_url(delivery))
    operator.post(button, {"reason": "because"})
    delivery.refresh_from_db()
    assert delivery.state == "in_flight"
