"""The page Health: the worst consumers and hosts first, with reasons and links."""

from datetime import date, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from channels_app.models import Consumer
from delivery.admin import health
from delivery.models import HealthDay
from tests.support import console
from tests.support.factories import ConsumerFactory

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:health")
DAY = date(2026, 11, 21)


def judge(consumer: Consumer | None, *, ago: int = 0, **values: Any) -> HealthDay:
    known = {"attempts": 100, "failed": 0, "score": 98, "reason": "well", "objective": 99.9}
    return HealthDay.objects.create(
        day=DAY - timedelta(days=ago),
        consumer_id=consumer.id if consumer else 0,
        **{"host": "shop.example", **known, **values},
    )


def names(client: Client, query: str = "") -> list[list[str]]:
    """Return the names of consumers and of hosts."""
    return [[line.name for line in lines] for _, lines in client.get(PAGE + query).context["parts"]]


def test_lowest_health_scores_come_first_if_there_are_enough_attempts(operator: Client) -> None:
    down, flaky, few, idle, well = ConsumerFactory.create_batch(5)
    judge(well, attempts=5000, score=100)
    judge(few, attempts=1, score=38)
    judge(idle, attempts=0, score=None, reason="nothing was sent")
    judge(flaky, failed=3, score=91, reason="3.00% of attempts failed")
    judge(down, failed=100, score=0, reason="down since noon")
    judge(None, failed=103, score=44)
    judge(None, host="other.example")

    order = [f"{one.channel.slug} / {one.client_id}" for one in (down, flaky, few, well, idle)]
    assert names(operator) == [order, ["shop.example", "other.example"]]
    lines = operator.get(PAGE).context["parts"][0][1]
    assert [line.tone for line in lines] == ["bad", "good", "calm", "good", "calm"]
    text = console.look(operator, PAGE)
    assert "down since noon" in text
    assert f'href="{console.page_url(down)}"' in text
    dead = reverse("admin:delivery_delivery_changelist")
    assert f"{dead}?state=dead&amp;consumer={down.id}" in text
    assert f"consumer={well.id}" not in text


def test_a_day_is_compared_with_previous_days(operator: Client) -> None:
    crm = ConsumerFactory.create()
    known: dict[str, Any] = {
        **{"score": 60, "failed": 40, "p95_ms": 2500.0, "recoveries": 2, "outage_s": 5400.0},
        **{"recovery_median_s": 30.0, "recovery_longest_s": 7200.0, "budget_used": 57.25},
        **{"burn_1h": 14.4, "burn_24h": 400.0, "p50_ms": 20.0, "p99_ms": 3000.0},
        "week_before": {"score": 97, "p50_ms": 10.0, "p95_ms": 40.0, "p99_ms": 90.0},
    }
    judge(crm, **known)
    judge(crm, ago=1, score=97)
    judge(crm, ago=3, score=99, host="elsewhere.example")
    judge(crm, ago=health.DAYS, score=1)

    ((line,), hosts) = (lines for _, lines in operator.get(PAGE).context["parts"])

    assert hosts == []
    assert (line.change, line.tone, line.success) == ("-37", "wait", "60.00%")
    assert (line.times, line.times_before) == ("20 ms / 2.5 s / 3 s", "10 ms / 40 ms / 90 ms")
    assert (line.recovery, line.longest) == ("30 s", "2 h")
    assert (line.outage, line.budget) == ("90 min", "5,725%")
    assert line.burns == [("1 h", "14.4"), ("24 h", "400")]
    assert line.spark_text.endswith("-, 99, -, 97, 60")
    assert line.spark == "M86.2 2.2h0M103.4 2.7h0L112.0 11.6h0"
    console.look(operator, PAGE)


def test_a_day_can_be_chosen(operator: Client) -> None:
    crm = ConsumerFactory.create()
    judge(crm)
    judge(crm, ago=1, failed=50, score=40)

    assert "Health, 2026-11-21" in console.look(operator, PAGE)
    assert "?day=2026-11-22" not in console.look(operator, PAGE)
    text = console.look(operator, f"{PAGE}?day=2026-11-20")
    assert "?day=2026-11-21" in text
    assert ">40</b>" in text
    assert "No data for this day" in console.look(operator, f"{PAGE}?day=2026-11-01")
    assert "Health, 2026-11-21" in console.look(operator, f"{PAGE}?day=nonsense")


def test_deleted_objects_keep_their_id(operator: Client) -> None:
    HealthDay.objects.create(day=DAY, consumer_id=4711, reason="x", objective=99, score=50)
    assert names(operator) == [["#4711, deleted"], []]
    console.look(operator, PAGE)
