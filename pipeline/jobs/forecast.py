"""Forecast the load of the coming hours from scheduled messages and from past weeks."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from pipeline.contract.jobs import JOBS
from pipeline.core import forecast
from pipeline.core.forecast import (
    ALL,
    HOUR,
    WEEK,
    ForecastRow,
    HourForecast,
    PastLoad,
    ScheduledLoad,
)
from pipeline.execution.job import Context, Job
from pipeline.transforms import load

HOURS, WEEKS = 168, 4
MAX_HOURS, MAX_WEEKS = 24 * 90, 52
MAX_MINUTES = 500
"""Hot minutes that are stored, the hottest first."""
TABLE = "delivery_forecastframe"
COLUMNS = (
    *("channel_id", "span_s", "begins_at", "messages", "deliveries", "bytes"),
    *("scheduled", "retries", "low", "high", "samples", "basis", "per_second", "workers"),
    *("is_hot", "run_id"),
)


def add_options(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--hours",
        type=_up_to(MAX_HOURS),
        default=HOURS,
        help=f"Hours to forecast (default: {HOURS}).",
    )
    parser.add_argument(
        "--weeks",
        type=_up_to(MAX_WEEKS),
        default=WEEKS,
        help=f"Weeks of history to use (default: {WEEKS}).",
    )
    parser.add_argument(
        "--rate",
        type=_rate,
        metavar="PER_SECOND",
        help="Deliveries per second of one pump (default: as measured, at least "
        f"{load.DEFAULT_RATE:.0f}).",
    )
    parser.add_argument(
        "--backtest",
        action="store_true",
        help="Also forecast last week from the weeks before it, and report the error.",
    )


def work(context: Context) -> dict[str, Any]:
    """Estimate each hour of each channel, and replace the last forecast."""
    options, database = context.options, context.database
    start = forecast.hour_of(context.datasets.readable_until())
    now = database.now()
    rate, source = load.rate(database, options.rate, now)
    fanout, channels = load.push_consumers(database)
    context.report("reading scheduled messages")
    end = start + HOUR * options.hours
    planned = load.scheduled(database, fanout, channels, now, end)
    # Start Spark here rather than while reading.
    context.spark  # noqa: B018
    context.report("reading the past weeks")
    weeks = options.weeks + (1 if options.backtest else 0)
    plan = _ForecastPlan(start, options.hours, options.weeks, options.backtest)
    for channel_id, past in load.history(context.datasets, fanout, start - WEEK * weeks, start):
        plan.add(channel_id, past, planned.pop(channel_id, ScheduledLoad()))
        context.report("reading the past weeks", len(plan.channels))
    for channel_id, channel_load in planned.items():
        plan.add(channel_id, PastLoad(), channel_load)
    rows = list(plan.rows())
    context.report("writing", 0, len(rows))
    write(context, rows, rate)
    return _result(plan, rows, rate, source)


class _ForecastPlan:
    """Collect the hours of all channels."""

    def __init__(self, start: datetime, count: int, weeks: int, backtest: bool) -> None:
        self.start, self.count, self.weeks, self.backtest = start, count, weeks, backtest
        self.channels: dict[int, ScheduledLoad] = {}
        self.hours = [HourForecast() for _ in range(count)]
        """Totals of all channels."""
        self.planned = ScheduledLoad()
        self.tested = [(0.0, 0.0)] * (WEEK // HOUR)
        self._channel_rows: list[ForecastRow] = []

    def add(self, channel_id: int, past: PastLoad, planned: ScheduledLoad) -> None:
        """Add a channel."""
        hours = forecast.forecast_hours(past, planned, self.start, self.count, self.weeks)
        self._channel_rows += forecast.hour_rows(channel_id, self.start, hours, planned)
        self.channels[channel_id] = planned
        self.planned.add(planned)
        for total, its in zip(self.hours, hours, strict=True):
            total.add(its)
        if self.backtest:
            pairs = forecast.backtest(past, self.start, len(self.tested), self.weeks)
            self.tested = [
                (actual + its_actual, expected + its_expected)
                for (actual, expected), (its_actual, its_expected) in zip(
                    self.tested, pairs, strict=True
                )
            ]

    def rows(self) -> Iterator[ForecastRow]:
        """Yield all rows: hours of all channels together, of each channel, and hot minutes."""
        yield from forecast.hour_rows(ALL, self.start, self.hours, self.planned)
        yield from self._channel_rows
        for at in forecast.hot_minutes(self.hours, self.planned, MAX_MINUTES):
            place = (forecast.hour_of(at) - self.start) // HOUR
            usual = self.hours[place].usual.deliveries / 60
            for channel_id, planned in ((ALL, self.planned), *self.channels.items()):
                row = forecast.minute_row(channel_id, at, planned, usual)
                if row is not None:
                    yield row


def write(context: Context, forecast_rows: list[ForecastRow], rate: float) -> None:
    """Replace the forecast in one transaction, so that readers never see a part."""
    rows = [
        [
            *(row.channel_id, row.span_s, row.begins_at),
            *(row.load.messages, row.load.deliveries, row.load.bytes),
            *(row.scheduled, row.retries, row.low, row.high, row.samples, row.basis.value),
            *(
                row.per_second,
                forecast.pumps_needed(row.per_second, rate),
                row.is_hot,
                context.run.id,
            ),
        ]
        for row in forecast_rows
    ]
    database = context.database
    holes = ", ".join(["%s"] * len(COLUMNS))
    with database.transaction():
        context.run.require_lock(database)
        database.execute(f"DELETE FROM {TABLE}")
        database.execute_many(f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({holes})", rows)


def _result(
    plan: _ForecastPlan, rows: list[ForecastRow], rate: float, source: str
) -> dict[str, Any]:
    whole = [row for row in rows if row.channel_id == ALL]
    by_hour = [row for row in whole if row.span_s == forecast.HOUR_S]
    result = {
        "from": plan.start.isoformat(),
        "hours": plan.count,
        "weeks": plan.weeks,
        "messages": round(sum(row.load.messages for row in by_hour)),
        "deliveries": round(sum(row.load.deliveries for row in by_hour)),
        "hot_hours": sum(row.is_hot for row in by_hour),
        "hot_minutes": len(whole) - len(by_hour),
        "workers": max(forecast.pumps_needed(row.per_second, rate) for row in by_hour),
        "rate_per_second": round(rate, 1),
        "rate_source": source,
    }
    if plan.backtest:
        weighted, mean = forecast.forecast_errors(plan.tested)
        result["error_percent"] = None if weighted is None else round(100 * weighted, 1)
        result["mean_error_percent"] = None if mean is None else round(100 * mean, 1)
    return result


def _up_to(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}.")
        return int(text)

    return read


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(f"{text!r} is no number of deliveries a second.")
    return value


JOB = Job("forecast", JOBS["forecast"].summary, add_options, work)
