"""The console's page of the forecast: the hourly strip, the peaks, and missing data."""

import csv
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from delivery.admin import forecast
from delivery.models import ForecastFrame, PipelineRun
from tests.support import console
from tests.support.factories import ChannelFactory

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:forecast")


def test_the_strip_shows_each_hour_and_marks_the_peak_and_little_data(operator: Client) -> None:
    channel = ChannelFactory.create()
    console.forecast(channel.pk, timezone.now())
    rate = {"rate_per_second": 600.0, "rate_source": "docs/performance.md"}
    # The last run did not measure its error.
    for more in ({"error_percent": 12.5, "mean_error_percent": 20.0}, {}):
        PipelineRun.objects.create(
            job="forecast",
            state="finished",
            requested_by="mia",
            requested_at=timezone.now(),
            result=rate | more,
        )

    answer = operator.get(PAGE)
    text = console.look(operator, PAGE)

    cells = [cell for day in answer.context["days"] for cell in day.cells]
    assert len(cells) % 24 == 0
    assert sum(cell.frame is not None for cell in cells) == 72
    assert "the same hour of past days" not in text
    (peak,) = [cell for cell in cells if cell.frame and cell.frame.is_hot]
    assert peak.heat == forecast.HEATS - 1
    assert {cell.heat for cell in cells if cell.frame} == set(range(forecast.HEATS))
    assert text.count("is-hot") == 1
    assert "was off by 12.5 %" in text
    assert "at 600 deliveries/s each (docs/performance.md)" in text
    assert f'href="?channel={channel.pk}"' in text
    minutes = [frame.deliveries for frame in answer.context["hot_minutes"]]
    assert minutes == [1400]

    first = ForecastFrame.objects.filter(channel_id=0).earliest("begins_at")
    ForecastFrame.objects.filter(pk=first.pk).update(basis="days")
    text = console.look(operator, PAGE)
    assert "For 1 of these hours" in text
    assert "the same hour of past days" in text


def test_a_channel_has_a_strip_of_its_own(operator: Client) -> None:
    channel = ChannelFactory.create(slug="orders")
    console.forecast(channel.pk, timezone.now())

    assert "Forecast of orders" in console.look(operator, f"{PAGE}?channel={channel.pk}")
    other = ChannelFactory.create()
    assert "No messages are expected here" in console.look(operator, f"{PAGE}?channel={other.pk}")
    assert "By channel" in console.look(operator, f"{PAGE}?channel=nonsense")


def test_the_file_has_every_frame_or_those_of_one_channel(operator: Client) -> None:
    channel = ChannelFactory.create()
    console.forecast(channel.pk, timezone.now())

    everything, one = (
        list(csv.DictReader(operator.get(f"{PAGE}csv{query}").getvalue().decode().splitlines()))
        for query in ("", f"?channel={channel.pk}")
    )

    assert [row["span_s"] for row in everything] == ["60"] + ["3600"] * 144
    assert everything[0]["deliveries"] == "1400.0"
    assert {row["channel_id"] for row in one} == {str(channel.pk)}
    assert len(one) == 72
    assert f'href="{PAGE}csv?channel={channel.pk}"' in console.look(
        operator, f"{PAGE}?channel={channel.pk}"
    )


def test_shades_are_equal_steps() -> None:
    assert [forecast.heat(value, 100) for value in (0, 0.1, 19, 21, 99, 100)] == [0, 1, 1, 2, 5, 5]
    assert forecast.heat(0, 0) == 0


def test_days_begin_at_midnight() -> None:
    first = datetime(2026, 11, 22, 22, tzinfo=UTC)
    hours = [
        ForecastFrame(begins_at=first + timedelta(hours=place), deliveries=1) for place in range(4)
    ]

    days = forecast.strip(hours)

    assert [day.day.day for day in days] == [22, 23]
    assert [sum(cell.frame is not None for cell in day.cells) for day in days] == [2, 2]
