"""The console's page of a minute or an hour: delivery latencies as text and as a chart."""

import re

import pytest
from django.utils import timezone

from delivery.core.timing import BUCKETS
from delivery.models import Traffic
from tests.support import console

pytestmark = pytest.mark.django_db


def latency_of(counts: list[int]) -> str:
    row = Traffic.objects.create(
        span_s=60,
        begins_at=timezone.now(),
        delivered=sum(counts),
        latency=[*counts, *[0] * (BUCKETS - len(counts))],
    )
    page = console.look(console.operator(), console.page_url(row))
    return page.partition('id="latency"')[2].partition("</section>")[0]


def test_buckets_are_a_table_from_the_fastest_to_the_slowest() -> None:
    shown = latency_of([0, 0, 0, 25, 0, 75])

    rows = re.findall(r"<td>(up to [^<]+)</td>.*?<td>(\d+)</td>\s*<td>([^<]+)</td>", shown, re.S)
    assert rows == [
        ("up to 10 ms", "25", "25.0 %"),
        ("up to 20 ms", "0", "0.0 %"),
        ("up to 50 ms", "75", "75.0 %"),
    ]
    assert re.findall(r'<rect width="([^"]+)"', shown) == ["33.3", "0.0", "100.0"]
    assert re.findall(r"<dt>(p\d+)</dt><dd>([^<]+)<", shown)[0] == ("p50", "30 ms")


def test_latencies_above_the_last_bound_are_marked() -> None:
    assert "over 3 d" in latency_of([0] * (BUCKETS - 1) + [1])


def test_an_interval_without_deliveries_is_marked() -> None:
    assert "Nothing was delivered" in latency_of([0])
