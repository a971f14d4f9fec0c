"""Rounds: sweeps in the order in which they fall due, a long one in slices between the others."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import Error as DatabaseFailure
from django.db.models import Q

from channels_app import clock
from delivery import metrics
from delivery.models import SweepRun

logger = logging.getLogger(__name__)

SLICE_S = 0.1
"""Seconds after which a sweep with more to do lets the others have their turn."""
TOLD_S = 10.0
"""How often one begins that a look finds nothing to do for: its row says that it is alive."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Something that has to be done again and again."""

    name: str
    every_s: float
    work: Callable[[], Iterator[int]]
    """Short steps, each with the number of rows it touched; no transaction is open in between."""
    idle_s: float = 0.0
    """A longer rhythm for as long as there is nothing to do."""
    pause_s: float = 0.0
    """Between two slices of a long run that is in no hurry."""
    has_work: Callable[[], bool] | None = None
    """A look that is cheaper than beginning, for a rhythm so quick that an idle broker feels it."""


@dataclass(slots=True)
class _Run:
    """A sweep under way."""

    steps: Iterator[int]
    started: float
    held_until: float
    """When somebody else may begin the same sweep, by our own ticks."""
    count: int = 0
    spent_s: float = 0.0
    error: str = field(default="")


class Rounds:
    """Sweeps as one process runs them: whoever moves a sweep's clock in the database forward.

    When each falls due is remembered here, so that the database is asked about one sweep at a time
    and an idle broker asks it little.
    """

    def __init__(self, sweeps: Sequence[Sweep]) -> None:
        self._sweeps = {sweep.name: sweep for sweep in sweeps}
        self._due = dict.fromkeys(self._sweeps, float("-inf"))
        self._open: dict[str, _Run] = {}
        self._told: dict[str, float] = {}
        """When each began last."""

    @property
    def is_busy(self) -> bool:
        """Whether a sweep has more to do."""
        return bool(self._open)

    def turn(self) -> int:
        """One slice of each sweep that is due, longest waiting first; returns how many began."""
        ticks, began = time.monotonic(), 0
        for name in sorted(self._due, key=self._due.__getitem__):
            if self._due[name] > ticks:
                break
            sweep = self._sweeps[name]
            if name not in self._open:
                if self._rests(sweep, ticks):
                    continue
                run = self._begin(sweep)
                if run is None:
                    continue
                self._open[name], self._told[name] = run, ticks
                began += 1
            self._go_on(sweep, self._open[name])
        return began

    def rest_s(self) -> float:
        """Seconds until a sweep wants to run."""
        return max(0.0, min(self._due.values()) - time.monotonic())

    def _rests(self, sweep: Sweep, ticks: float) -> bool:
        """Whether there is nothing to do, and nobody waits to be told so."""
        if sweep.has_work is None:
            return False
        if ticks - self._told.get(sweep.name, float("-inf")) < TOLD_S and not sweep.has_work():
            self._due[sweep.name] = ticks + max(sweep.every_s, sweep.idle_s)
            return True
        return False

    def _begin(self, sweep: Sweep) -> _Run | None:
        now, ticks = clock.now(), time.monotonic()
        mine = SweepRun.objects.filter(name=sweep.name)
        soon = now + timedelta(seconds=sweep.every_s)
        # Later than its rhythm allows: the database's clock was set back.
        due = Q(next_at__lte=now) | Q(next_at__gt=soon)
        fresh = {"last_duration_ms": 0, "last_count": 0, "last_error": ""}
        if mine.filter(due).update(next_at=soon, last_started_at=now, **fresh):
            return _Run(sweep.work(), ticks, ticks + sweep.every_s)
        next_at = mine.values_list("next_at", flat=True).first()
        if next_at is None:
            SweepRun.objects.get_or_create(name=sweep.name, defaults={"next_at": now})
            next_at = now
        self._due[sweep.name] = ticks + max(0.0, (next_at - now).total_seconds())
        return None

    def _go_on(self, sweep: Sweep, run: _Run) -> None:
        started = time.monotonic()
        try:
            done = self._slice(sweep, run, started + SLICE_S)
        except DatabaseFailure as failure:
            # The others still run, and this one again at its next time.
            run.error, done = f"{type(failure).__name__}: {failure}"[:500], True
            logger.warning("sweep %s failed: %s", sweep.name, run.error)
        ticks = time.monotonic()
        run.spent_s += ticks - started
        if done:
            del self._open[sweep.name]
            idle = not (run.count or run.error)
            rhythm = max(sweep.every_s, sweep.idle_s) if idle else sweep.every_s
            self._due[sweep.name] = max(ticks, run.started + rhythm)
            self._report(sweep, run)
            return
        self._due[sweep.name] = ticks + sweep.pause_s
        if run.held_until - ticks < sweep.every_s / 2:
            run.held_until = ticks + sweep.every_s
            later = clock.now() + timedelta(seconds=sweep.every_s)
            SweepRun.objects.filter(name=sweep.name).update(next_at=later)

    def _slice(self, sweep: Sweep, run: _Run, end: float) -> bool:
        """Steps until ``end``; whether that was all."""
        for count in run.steps:
            run.count += count
            metrics.SWEPT.labels(sweep.name).inc(count)
            if time.monotonic() >= end:
                return False
        return True

    def _report(self, sweep: Sweep, run: _Run) -> None:
        # Nothing found in no time is what the beginning wrote down already.
        if run.count or run.error or run.spent_s >= SLICE_S:
            SweepRun.objects.filter(name=sweep.name).update(
                last_duration_ms=int(run.spent_s * 1000),
                last_count=run.count,
                last_error=run.error,
            )
