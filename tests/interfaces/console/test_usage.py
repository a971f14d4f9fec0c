"""The page Usage: a month in numbers, charts and a file, for users who may see it."""

import csv
import io
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from channels_app.models import Consumer, Producer
from delivery.models import LatencyHour, UsageHour
from pipeline.contract.histogram import bucket
from tests.support import console
from tests.support.factories import ConsumerFactory, ProducerFactory

pytestmark = pytest.mark.django_db

PAGE, FILE = reverse("admin:usage"), reverse("admin:usage-csv")
NOVEMBER = "?month=2026-11"


@pytest.fixture
def crm() -> Consumer:
    """A consumer with two hours of use on one day, one on another, and one in December."""
    crm = ConsumerFactory.create(client_id="crm")
    shop = ProducerFactory.create(slug="shop")
    for day, hour in ((3, 4), (3, 5), (20, 23)):
        use(crm, shop, datetime(2026, 11, day, hour, tzinfo=UTC))
    use(crm, shop, datetime(2026, 12, 1, tzinfo=UTC))
    return crm


def use(crm: Consumer, shop: Producer, hour: datetime) -> None:
    mine: dict[str, Any] = {
        "hour": hour,
        "channel_id": crm.channel_id,
        "producer_id": shop.id,
    }
    UsageHour.objects.create(**mine, consumer_id=0, messages=100, bytes=2048)
    UsageHour.objects.create(
        **mine,
        **{"consumer_id": crm.id, "delivered": 97, "dead": 3, "attempts": 120},
        **{"failed_attempts": 23, "bytes_out": 1999},
    )
    for ms, count in ((50, 90), (3000, 7)):
        LatencyHour.objects.create(hour=hour, consumer_id=crm.id, bucket=bucket(ms), count=count)


def lines(client: Client, query: str) -> list[dict[str, str]]:
    answer: Any = client.get(FILE + query)
    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/csv"
    text = b"".join(answer.streaming_content).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_usage_is_summed_by_month(operator: Client, crm: Consumer) -> None:
    text = console.look(operator, PAGE + NOVEMBER)
    context = operator.get(PAGE + NOVEMBER).context

    facts = dict(context["facts"])
    assert facts["Messages"] == "300"
    assert facts["Attempts"] == "360"
    assert facts["Sent"].replace("\xa0", " ") == "5.9 KB"
    accepted, mine = context["rows"]
    assert (accepted["consumer_id"], accepted["messages"]) == (0, 300)
    assert (mine["producer"], mine["consumer"], mine["dead"]) == ("shop", "crm", 9)
    (latency,) = context["latencies"]
    assert latency["count"] == "291"
    assert latency["times"] == ["49.7 ms", "3.06 s", "3.37 s"]
    flow, sizes = context["charts"]
    assert flow.lines[0].path.startswith("M0.0 160.0 L31.6 160.0 L63.2")
    assert (flow.times[0], flow.times[-1]) == ("01 Nov", "20 Nov")
    assert [line.last for line in flow.lines] == ["100", "97", "23"]
    assert sizes.title == "Bytes per day"
    assert "python -m pipeline usage --since 2026-11-01 --until 2026-12-01" in text
    assert f'href="{console.page_url(crm)}"' in text


def test_the_usage_file_has_the_month_as_csv(operator: Client, crm: Consumer) -> None:
    by_month = lines(operator, NOVEMBER)
    assert [row["month"] for row in by_month] == ["2026-11"] * 2
    assert [row["consumer"] for row in by_month] == ["", "crm"]
    assert by_month[1]["attempts"] == "360"
    assert by_month[0]["producer"] == "shop"

    by_day = lines(operator, f"{NOVEMBER}&by=day")
    assert [(row["day"], row["attempts"]) for row in by_day if row["consumer"]] == [
        ("2026-11-03", "240"),
        ("2026-11-20", "120"),
    ]
    by_hour = lines(operator, f"{NOVEMBER}&by=hour")
    assert [row["hour"] for row in by_hour if row["consumer"]] == [
        "2026-11-03 04:00",
        "2026-11-03 05:00",
        "2026-11-20 23:00",
    ]
    assert lines(operator, "?month=2026-11&by=nonsense") == by_month
    assert lines(operator, "?month=2025-01") == []


def test_csv_cells_are_no_formulas_and_deleted_objects_keep_their_id(
    operator: Client, crm: Consumer
) -> None:
    Producer.objects.filter(slug="shop").update(slug="@SUM(A1)")
    UsageHour.objects.filter(consumer_id=crm.id).update(consumer_id=4711)

    rows = lines(operator, NOVEMBER)

    assert {row["producer"] for row in rows} == {"'@SUM(A1)"}
    assert [row["consumer"] for row in rows] == ["", "#4711"]
    assert "#4711" in console.look(operator, PAGE + NOVEMBER)


def test_a_month_without_data_says_so(operator: Client) -> None:
    console.fill()
    assert "No usage was counted for this month" in console.look(operator, f"{PAGE}?month=2025-02")
    for query in ("", "?month=nonsense"):
        assert "By producer, channel and consumer" in console.look(operator, PAGE + query)
    for month in ("0001-01", "9999-12"):
        console.look(operator, f"{PAGE}?month={month}")
