"""Health: Spark measures what plain Python measures over the same month."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pytest

from channels_app.models import Consumer
from delivery.models import Attempt, HealthDay
from pipeline.contract import histogram
from pipeline.core import health, hours
from pipeline.core.health import Measures
from pipeline.execution.job import JobError
from pipeline.settings import Settings
from pipeline.transforms import endpoints
from tests.pipeline import month, moving
from tests.pipeline.conftest import RunJob, count_until
from tests.pipeline.month import Month

pytestmark = pytest.mark.django_db(transaction=True)

HOST = "shared.example"
WEEK = endpoints.WEEK_BEFORE


@dataclass(slots=True)
class Stretch:
    """A run of consecutive failures."""

    since: datetime
    failures: int = 1
    until: datetime | None = None


@dataclass(slots=True)
class Judged:
    """The attempts of a consumer or host, evaluated one after the other."""

    attempts: list[Attempt]
    """In the order of their ends."""
    end: datetime
    """The end of the known hours."""
    runs: list[Stretch] = field(default_factory=list)

    def __post_init__(self) -> None:
        run: Stretch | None = None
        for row in self.attempts:
            if row.outcome == "delivered":
                if run is not None:
                    run.until = row.started_at + timedelta(milliseconds=row.total_ms)
                    self.runs.append(run)
                run = None
            elif run is None:
                run = Stretch(row.started_at)
            else:
                run.failures += 1
        if run is not None:
            self.runs.append(run)

    def measures(self, low: datetime, high: datetime) -> Measures:
        found = Measures()
        for row in self.attempts:
            if not low <= row.started_at < high:
                continue
            evening = min(hours.midnight(row.started_at) + hours.DAY, self.end)
            weight = health.recency((evening - hours.floor(row.started_at)) // hours.HOUR - 1)
            bucket = histogram.bucket(row.total_ms)
            found.add(row.outcome, bucket, 1, int(row.number > 1), weight, weight**2)
        return found

    def ended(self, low: datetime, high: datetime) -> list[float]:
        return [
            (run.until - run.since).total_seconds()
            for run in self.runs
            if run.until is not None and low <= run.until < high
        ]

    def outage_s(self, low: datetime, high: datetime) -> float:
        return sum(
            max(0.0, (min(run.until or high, high) - max(run.since, low)).total_seconds())
            for run in self.runs
            if run.failures >= health.OUTAGE_FAILURES
        )

    def down_since(self, high: datetime) -> datetime | None:
        open_ = [
            run.since
            for run in self.runs
            if run.failures >= health.OUTAGE_FAILURES
            and run.since < high
            and (run.until is None or run.until >= high)
        ]
        return max(open_, default=None)


@pytest.fixture
def made() -> Month:
    """A month with two consumers at one host; interrupted attempts count for neither."""
    made = month.make(messages=600)
    for name in ("steady", "flaky"):
        Consumer.objects.filter(client_id=name).update(url=f"https://{HOST}:8443/{name}")
        made.consumers[name].url = f"https://{HOST}:8443/{name}"
    mine = [row for row in made.attempts if row.started_at >= made.until - timedelta(days=1)]
    for row in mine[:10:2]:
        row.outcome = "interrupted"
        row.save()
    return made


def wanted(judged: Judged, low: datetime, high: datetime) -> dict[str, Any]:
    """The expected measures of a window."""
    known, ended = judged.measures(low, high), judged.ended(low, high)
    return {
        "attempts": known.attempts,
        "failed": known.failed,
        "retries": known.retries,
        "unreachable": known.unreachable,
        "recoveries": len(ended),
        "score": health.score(known),
        **{f"p{percent}_ms": known.percentile(percent) for percent in (50, 95, 99)},
        "recovery_median_s": median(ended) if ended else None,
        "recovery_longest_s": max(ended, default=None),
        "outage_s": judged.outage_s(low, high),
    }


def compare(made: Month, row: HealthDay, first: datetime, end: datetime) -> None:
    """Compare a stored row with the attempts that began between ``first`` and ``end``."""
    homes = {one.id: endpoints.host_of(one.url) for one in made.consumers.values()}

    def is_meant(attempt: Attempt) -> bool:
        consumer_id = attempt.delivery.consumer_id
        meant = (
            consumer_id == row.consumer_id if row.consumer_id else homes[consumer_id] == row.host
        )
        return meant and attempt.outcome != "interrupted" and first <= attempt.started_at < end

    mine = sorted(filter(is_meant, made.attempts), key=lambda attempt: attempt.id)
    judged = Judged(mine, end)
    low = datetime(row.day.year, row.day.month, row.day.day, tzinfo=UTC)
    high = min(low + hours.DAY, end)
    for told, span in ((vars(row), (low, high)), (row.week_before, (low - WEEK, low))):
        for name, value in wanted(judged, *span).items():
            close = pytest.approx(value) if isinstance(value, float) else value
            assert told[name] == close, (str(row), name)
    assert row.down_since == judged.down_since(high)
    spans = {"budget_used": high - WEEK, "burn_day": low}
    spans |= {
        f"burn_{name}": high - span * hours.HOUR for name, span in endpoints.BURN_WINDOWS.items()
    }
    for name, since in spans.items():
        assert getattr(row, name) == health.burn_rate(
            judged.measures(since, high), row.objective
        ), name


def compare_days(made: Month, starts: list[datetime], end: datetime, told: dict[str, Any]) -> None:
    """Compare the rows of these days with the attempts until ``end``."""
    found = list(HealthDay.objects.all())
    assert {row.day for row in found} == {start.date() for start in starts}
    assert {row.consumer_id for row in found} == {0, *(c.id for c in made.consumers.values())}
    hosts = {"broken.example", "late.example", "books.example", "slow.example", HOST}
    assert {row.host for row in found if not row.consumer_id} == hosts
    assert {row.objective for row in found} == {99.5}
    assert told["rows"] == len(found)
    assert told["attempts"] == sum(row.attempts for row in found if row.consumer_id)
    for row in found:
        compare(made, row, starts[0] - WEEK, end)
    broken = found_of(made, "broken")
    assert broken.down_since is not None
    assert broken.reason.startswith("down since")
    assert broken.score is not None
    assert broken.score < (found_of(made, "steady").score or 0)


def found_of(made: Month, name: str) -> HealthDay:
    return HealthDay.objects.filter(consumer_id=made.consumers[name].id).latest("day")


def test_the_last_two_days_are_what_their_attempts_say(
    made: Month, run_job: RunJob, chosen: Settings
) -> None:
    count_until(chosen, made.until)
    told = run_job("health", objective=99.5)
    today = hours.midnight(made.until)
    compare_days(made, [today - hours.DAY, today], made.until, told)


def test_a_day_is_replaced_and_no_other_and_counts_once_in_the_lake(
    made: Month, run_job: RunJob, chosen: Settings
) -> None:
    count_until(chosen, made.until)
    start = hours.midnight(made.broke_at)
    day = start.date()
    for other in (day - hours.DAY, day, day + hours.DAY):
        HealthDay.objects.create(day=other, consumer_id=4711, reason="x", objective=99)

    moving.move(
        chosen, "deliveries", made.until - timedelta(days=2), stays=lambda key: key % 2 == 0
    )

    told = run_job("health", day=f"{day}", objective=99.5)

    others = HealthDay.objects.filter(consumer_id=4711)
    assert {row.day for row in others} == {day - hours.DAY, day + hours.DAY}
    others.delete()
    compare_days(made, [start], start + hours.DAY, told)


def test_a_day_to_come_is_refused(run_job: RunJob) -> None:
    with pytest.raises(JobError, match="no whole hour yet"):
        run_job("health", day="2100-01-01")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Shop.example:8443/x?y=z", "shop.example"),
        ("http://[::1]:80/", "::1"),
        ("http://[::1", ""),
        ("", ""),
    ],
)
def test_a_host_is_whom_an_address_is_of(url: str, host: str) -> None:
    assert endpoints.host_of(url) == host
