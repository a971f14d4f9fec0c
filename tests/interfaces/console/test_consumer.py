"""A consumer's page in the console shows its health, circuit and deliveries by state."""

import re
from datetime import UTC, datetime
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from channels_app.models import Consumer
from delivery.models import ConsumerHealth
from tests.support import console
from tests.support.counts import make_deliveries
from tests.support.factories import ConsumerFactory

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def part(page: str) -> str:
    """Return the health section above the form."""
    return page.partition('id="health"')[2].partition("</section>")[0]


def test_a_failing_consumer_shows_since_when_and_how(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    ConsumerHealth.objects.create(
        consumer=consumer,
        circuit="open",
        consecutive_failures=1234,
        failing_since=NOON,
        next_probe_at=NOON,
        last_failure_at=NOON,
        last_outcome="connection_refused",
        opened_count=17,
    )

    shown = part(console.look(operator, console.page_url(consumer)))

    for words in (
        "open",
        "Failing since",
        "2026-06-01 12:00:00",
        "1,234",
        "Next probe",
        "17 times",
    ):
        assert words in shown
    assert "connection refused" in shown
    ConsumerHealth.objects.update(circuit="closed", failing_since=None, last_outcome="delivered")
    well = part(console.look(operator, console.page_url(consumer)))
    assert "closed" in well
    assert "Failing since" not in well


def test_the_list_shows_failures_and_filters_by_circuit(operator: Client) -> None:
    well, little, much = (ConsumerFactory.create() for _ in range(3))
    ConsumerHealth.objects.create(consumer=well)
    for consumer, failures in ((little, 7), (much, 1234)):
        ConsumerHealth.objects.create(
            consumer=consumer, circuit="open", consecutive_failures=failures, failing_since=NOON
        )
    page = console.list_url(Consumer)
    listed = operator.get(page).context["cl"]
    column = listed.list_display.index("failing")

    found = operator.get(f"{page}?health__circuit__exact=open&o=-{column}").context["cl"]

    assert list(found.result_list) == [much, little]
    text = console.look(operator, page)
    assert "1,234 since <time" in text
    assert "2026-06-01 12:00:00" in text


def test_counts_link_to_the_consumers_deliveries(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 3, state="dead")
    make_deliveries(ConsumerFactory.create(), 1, state="dead")

    shown = part(console.look(operator, console.page_url(consumer)))

    links = [unescape(link) for link in re.findall(r'<dd><a class="hs-link" href="([^"]+)', shown)]
    assert len(links) == 6
    dead = next(link for link in links if "state=dead" in link)
    assert len(operator.get(dead).context["cl"].result_list) == 3
    assert re.search(r"Dead</dt><dd><a[^>]+>3</a>", shown)


def test_a_consumer_without_deliveries_is_marked(operator: Client) -> None:
    page = console.page_url(ConsumerFactory.create())

    assert "Nothing was sent to it yet" in part(console.look(operator, page))
    assert 'id="health"' not in console.look(operator, reverse("admin:channels_app_consumer_add"))
