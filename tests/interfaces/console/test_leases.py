"""The console's view of leases: which worker holds which delivery, and revoking a lease."""

import pytest
from django.test import Client
from django.urls import reverse

from channels_app.models import AuditEntry
from delivery.models import Attempt, PullWorker
from tests.support import console
from tests.support.counts import assert_counters_are_true
from tests.support.factories import DeliveryFactory
from tests.support.pulling import Worker, lapse, row_of, waiting

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return console.operator()


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


def test_an_empty_list_of_workers_explains_how_to_start(operator: Client) -> None:
    page = console.list_url(PullWorker)
    assert "No workers yet" in console.look(operator, page)
    Worker(waiting(b"x")).receive(worker_id="printer")
    text = console.look(operator, page)
    assert "No workers yet" not in text
    assert "printer" in text


def test_a_push_consumers_page_has_no_leases(operator: Client) -> None:
    delivery = DeliveryFactory.create(in_flight=True)
    assert part(console.look(operator, console.page_url(delivery.consumer))) == ""


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


def test_a_viewer_cannot_release_leases() -> None:
    viewer = console.onlooker()
    consumer = waiting(b"x")
    Worker(consumer).receive()
    row = row_of(consumer)
    button = reverse("admin:delivery_delivery_release", args=[row.pk])
    assert button not in console.look(viewer, console.page_url(row))
    assert viewer.post(button).status_code == 403
    assert row_of(consumer).state == "in_flight"
