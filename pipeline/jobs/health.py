"""Measure the health of each consumer and host on a day and in the 7 days before it."""

import json
from argparse import ArgumentParser
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from pipeline.contract.jobs import JOBS
from pipeline.core import health, hours
from pipeline.core.health import Measures
from pipeline.execution.job import Context, Job, JobError
from pipeline.lake.datasets import CLOCK_SKEW, RECORDING_DELAY
from pipeline.transforms import endpoints
from pipeline.transforms.endpoints import BURN_WINDOWS, WEEK_BEFORE

TABLE = "delivery_healthday"
OBJECTIVE = 99.9
PERCENTILES = (50, 95, 99)
COLUMNS = (
    *("day", "consumer_id", "host", "attempts", "failed", "retries", "unreachable"),
    *("p50_ms", "p95_ms", "p99_ms", "recoveries", "recovery_median_s", "recovery_longest_s"),
    *("outage_s", "score", "down_since", "reason", "objective", "budget_used"),
    *("burn_1h", "burn_6h", "burn_24h", "burn_day", "week_before"),
)


@dataclass(slots=True)
class FailureRuns:
    """Runs of consecutive failures that ended in a window, and how much of it long runs covered."""

    recoveries: int = 0
    recovery_median_s: float | None = None
    recovery_longest_s: float | None = None
    outage_s: float = 0.0


@dataclass(slots=True)
class Measurements:
    """Measurements of one consumer or host, by window."""

    measures: defaultdict[str, Measures] = field(default_factory=lambda: defaultdict(Measures))
    runs: defaultdict[str, FailureRuns] = field(default_factory=lambda: defaultdict(FailureRuns))
    down_since: datetime | None = None

    def values(self, window: str) -> dict[str, Any]:
        """Return the values in which a day is compared with the days before it."""
        measures = self.measures[window]
        return {
            "attempts": measures.attempts,
            "failed": measures.failed,
            "retries": measures.retries,
            "unreachable": measures.unreachable,
            **{f"p{percent}_ms": measures.percentile(percent) for percent in PERCENTILES},
            **asdict(self.runs[window]),
            "score": health.score(measures),
        }


Day = dict[tuple[int, str], Measurements]
"""By consumer and host."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--day", type=_day, metavar="DATE", help="A day in UTC (default: yesterday and today)."
    )
    parser.add_argument(
        "--objective",
        type=_objective,
        metavar="PERCENT",
        default=OBJECTIVE,
        help="Percentage of attempts that should succeed (default: %(default)s).",
    )


def work(context: Context) -> dict[str, Any]:
    """Measure and rate each day, and replace its former rows."""
    bound = context.datasets.readable_until()
    spans = days_of(context.options.day, hours.floor(bound))
    if not spans:
        raise JobError(f"{context.options.day} has no whole hour yet.")
    first, last = spans[0][0] - WEEK_BEFORE, spans[-1][1]
    context.report("reading")
    attempts = context.datasets.attempts(
        first - CLOCK_SKEW, min(last + RECORDING_DELAY, bound), list(endpoints.ATTEMPT_COLUMNS)
    )
    started = f.col("started_at")
    attempts = attempts.where((started >= f.lit(first)) & (started < f.lit(last)))
    attempts = attempts.where(~f.col("outcome").isin(*health.BROKERS_OWN)).persist()
    try:
        days = _measure(context, attempts, spans)
    finally:
        attempts.unpersist()
    for done, (start, _) in enumerate(spans):
        context.report("rating", done, len(spans))
        _write(context, start.date(), days[start])
    tried = sum(
        measurements.measures["day"].attempts
        for day in days.values()
        for (consumer_id, _), measurements in day.items()
        if consumer_id
    )
    return {"days": len(spans), "rows": sum(map(len, days.values())), "attempts": tried}


JOB = Job("health", JOBS["health"].summary, add_options, work)


def days_of(day: str | None, end: datetime) -> list[endpoints.Span]:
    """Return the requested days, each up to its last whole hour before ``end``."""
    today = hours.midnight(end)
    starts = [hours.parse(day)] if day else [today - hours.DAY, today]
    return [(start, min(start + hours.DAY, end)) for start in starts if start < end]


def row_of(
    day: date, who: tuple[int, str], measurements: Measurements, objective: float
) -> dict[str, Any]:
    """Return a row of the table."""
    measures = measurements.measures
    burns = {
        f"burn_{name}": health.burn_rate(measures[name], objective)
        for name in (*BURN_WINDOWS, "day")
    }
    return {
        "day": day.isoformat(),
        "consumer_id": who[0],
        "host": who[1],
        **measurements.values("day"),
        "down_since": measurements.down_since,
        "reason": health.reason(
            *(measures["day"], measures["before"]),
            down_since=measurements.down_since,
            burn_1h=burns["burn_1h"],
            burn_6h=burns["burn_6h"],
        ),
        "objective": objective,
        # A rate of 1 for a week uses the whole budget of a week.
        "budget_used": health.burn_rate(measures["week"], objective),
        **burns,
        "week_before": json.dumps(measurements.values("before")),
    }


def _day(text: str) -> str:
    return date.fromisoformat(text).isoformat()


def _objective(text: str) -> float:
    value = float(text)
    if not 0 < value < 100:
        raise ValueError(text)
    return value


def _measure(
    context: Context, attempts: DataFrame, spans: list[endpoints.Span]
) -> dict[datetime, Day]:
    """Return the measurements of each day."""
    days: dict[datetime, Day] = {start: defaultdict(Measurements) for start, _ in spans}

    def measured(row: Row) -> Measurements:
        day = datetime.fromtimestamp(row["day"], UTC)
        return days[day][row["consumer_id"], row["host"]]

    consumer_hosts = endpoints.hosts(context.spark, context.database)
    windows = endpoints.windows(context.spark, spans)
    context.report("measuring")
    for row in endpoints.sums(attempts, consumer_hosts, windows, spans[-1][1]).toLocalIterator():
        measured(row).measures[row["window"]].add(
            *(row["outcome"], row["bucket"], row["n"], row["retries"]),
            *(row["weight"], row["squares"]),
        )
        context.run.check()
    context.report("finding recoveries")
    runs = endpoints.runs(attempts, consumer_hosts).persist()
    for row in endpoints.recoveries(runs, windows).toLocalIterator():
        window_runs = measured(row).runs[row["window"]]
        window_runs.recoveries = row["n"]
        window_runs.recovery_median_s = row["median_s"]
        window_runs.recovery_longest_s = row["longest_s"]
    for row in endpoints.outages(runs, windows).toLocalIterator():
        measured(row).runs[row["window"]].outage_s = row["outage_s"]
        if row["window"] == "day" and row["since"] is not None:
            measured(row).down_since = endpoints.from_micros(row["since"])
    runs.unpersist()
    return days


def _write(context: Context, day: date, groups: Day) -> None:
    """Write one day in one transaction."""
    objective = context.options.objective
    rows = [
        row_of(day, who, measurements, objective) for who, measurements in sorted(groups.items())
    ]
    with context.database.transaction():
        context.run.require_lock(context.database)
        context.database.replace_rows(
            *(TABLE, "day", day.isoformat(), (day + hours.DAY).isoformat()),
            COLUMNS,
            [[row[name] for name in COLUMNS] for row in rows],
        )
