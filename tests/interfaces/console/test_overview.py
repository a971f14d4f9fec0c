"""The start page: figures with links to their details, charts, and hints for a new installation."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.core.cache import caches
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from channels_app.database import clock
from delivery.core.timing import BUCKETS
from delivery.models import Traffic
from delivery.models.traffic import ALL, HOUR_S, MINUTE_S
from tests.support import console
from tests.support.counts import make_deliveries
from tests.support.factories import ConsumerFactory

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:index")


def passed(
    consumer_id: int = ALL, *, span_s: int = MINUTE_S, ago_s: int = 300, **amounts: int
) -> None:
    """Create a traffic row as the maintenance process does."""
    begins_at = (clock.now() - timedelta(seconds=ago_s)).replace(second=0, microsecond=0)
    latency = [0] * BUCKETS
    latency[4] = amounts.get("delivered", 0)
    Traffic.objects.create(
        consumer_id=consumer_id, span_s=span_s, begins_at=begins_at, latency=latency, **amounts
    )


def figures(client: Client, query: str = "") -> dict[str, str]:
    """Return the values of the cards by their titles."""
    groups = client.get(PAGE + query).context["groups"]
    return {card["title"]: str(card["value"]) for _, cards in groups for card in cards}


def test_traffic_is_summed_and_charted(operator: Client) -> None:
    passed(accepted=1200, delivered=900, failed=100, dead=3)

    told = figures(operator)
    assert told["Accepted"] == "1,200"
    assert (told["Successful attempts"], told["Failed attempts"]) == ("900", "100")
    assert told["Latency"] == "15 ms / 19.5 ms / 19.9 ms"
    flow, latency = operator.get(PAGE).context["charts"]
    assert flow.marks == ["2,000", "1,000", "0"]
    assert latency.marks == ["100 ms", "10 ms"]
    text = console.look(operator, PAGE)
    assert "90.0% of attempts" in text
    assert "<td>1,200</td><td>900</td><td>100</td><td>3</td><td>15 ms</td>" in text


def test_ranges_cover_their_hours_and_have_titles(operator: Client) -> None:
    passed(delivered=1)
    passed(delivered=10, ago_s=7200)
    passed(delivered=100, span_s=HOUR_S, ago_s=3 * 86400)

    for name, title, ranked, delivered in (
        ("1h", "Last hour", "Most failures, last hour", "1"),
        ("24h", "Last day", "Most failures, last day", "11"),
        ("7d", "Last 7 days", "Most failures, last day", "100"),
        ("nonsense", "Last hour", "Most failures, last hour", "1"),
    ):
        page = operator.get(f"{PAGE}?part=live&range={name}")
        (shown, cards), *_ = page.context["groups"]
        values = {card["title"]: str(card["value"]) for card in cards}
        assert (shown, values["Successful attempts"]) == (title, delivered)
        assert ranked in page.content.decode()


@pytest.mark.slow("follows every link of the page")
def test_every_figure_links_to_its_list(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 2, state="dead")
    passed(consumer.id, span_s=HOUR_S, failed=5, dead=2, ago_s=60)

    part = operator.get(f"{PAGE}?part=live").content.decode()
    links = [unescape(link) for link in re.findall(r'href="([^"]+)"', part)]

    assert len(links) == 16
    for link in links:
        assert operator.get(link).status_code == 200, link
    assert f"{consumer.channel.slug} / {consumer.client_id}" in part
    told = figures(operator)
    assert [told[name] for name in ("Dead letters", "Running pumps", "Reconciliation gap")] == [
        *("2", "0", "0"),
    ]
    dead = next(link for link in links if f"consumer={consumer.id}" in link)
    assert len(operator.get(dead).context["cl"].result_list) == 2


def test_failing_consumers_are_cached_for_all_viewers(operator: Client) -> None:
    one, other = ConsumerFactory.create_batch(2)
    passed(one.id, span_s=HOUR_S, failed=5, ago_s=60)

    def names(query: str) -> list[str]:
        return [row["name"] for row in operator.get(f"{PAGE}{query}").context["worst"]]

    assert len(names("?part=live")) == 1
    passed(other.id, span_s=HOUR_S, failed=6, ago_s=60)
    with CaptureQueriesContext(connection) as queries:
        assert len(names("?part=live")) == 1
    assert not any("SUM" in one["sql"] and "traffic" in one["sql"] for one in queries)
    caches["process"].clear()
    assert len(names("?part=live")) == 2


def test_the_live_part_is_the_page_without_its_frame(operator: Client) -> None:
    ConsumerFactory.create()

    part = operator.get(f"{PAGE}?part=live&range=24h")

    assert b"<html" not in part.content
    assert part.context["range"] == "24h"
    assert part["Cache-Control"].startswith("max-age=0")
    assert 'data-source="?part=live&amp;range=24h"' in console.look(operator, f"{PAGE}?range=24h")


def test_failing_consumers_require_permission() -> None:
    consumer = ConsumerFactory.create(client_id="private-one")
    passed(consumer.id, span_s=HOUR_S, failed=5, ago_s=60)
    assert "private-one" in console.look(console.onlooker(), f"{PAGE}?part=live")
    client = console.staff(name="stan")
    for page in (PAGE, f"{PAGE}?part=live"):
        text = console.look(client, page)
        assert "private-one" not in text
        assert "Most failures" not in text
