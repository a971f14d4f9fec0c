"""Convert entries of ``beat_schedule`` to the broker's schedules (docs/api.md, "Schedules")."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Union

from hookstation_client.celery.exceptions import NotCovered

Field = Union[int, str, Iterable[int]]


class schedule:
    """A schedule with a fixed interval in seconds."""

    def __init__(
        self, run_every: float | timedelta, relative: bool = False, nowfun: Any = None
    ) -> None:
        if relative or nowfun:
            raise NotCovered("schedule(relative, nowfun)")
        seconds = run_every.total_seconds() if isinstance(run_every, timedelta) else run_every
        self.run_every = timedelta(seconds=seconds)

    def as_fields(self, timezone: str) -> dict[str, Any]:
        """Return the fields of the broker's schedule."""
        return {"every_ms": round(self.run_every.total_seconds() * 1000)}


class crontab:
    """A schedule at matching minutes, hours and days, in the application's ``timezone``."""

    def __init__(
        self,
        minute: Field = "*",
        hour: Field = "*",
        day_of_week: Field = "*",
        day_of_month: Field = "*",
        month_of_year: Field = "*",
        **options: Any,
    ) -> None:
        if options:
            raise NotCovered(f"crontab({', '.join(sorted(options))})")
        self.minute, self.hour = _text(minute), _text(hour)
        self.day_of_week = _text(day_of_week)
        self.day_of_month, self.month_of_year = _text(day_of_month), _text(month_of_year)
        if self.day_of_week != "*" and self.day_of_month != "*":
            # Celery requires both to match, a cron expression either of them.
            raise NotCovered("crontab(day_of_week, day_of_month) with both")

    def as_fields(self, timezone: str) -> dict[str, Any]:
        """Return the fields of the broker's schedule."""
        days = f"{self.day_of_month} {self.month_of_year} {self.day_of_week}"
        return {"cron": f"{self.minute} {self.hour} {days}", "timezone": timezone}


def maybe_schedule(value: Any) -> Any:
    """Return a schedule; seconds or a timedelta become an interval."""
    if isinstance(value, (int, float, timedelta)):
        return schedule(value)
    if isinstance(value, (schedule, crontab)):
        return value
    raise NotCovered(f"a schedule of the type {type(value).__name__}")


def _text(field: Field) -> str:
    if isinstance(field, (int, str)):
        return str(field).replace(" ", "").upper()
    return ",".join(str(one) for one in sorted(field))
