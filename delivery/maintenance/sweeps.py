"""Define the sweeps, and run them in the order in which they are due."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import Error as DatabaseFailure

from channels_app import failpoints
from channels_app.database import clock, raw, transactions
from channels_app.ingest import sequence
from delivery import metrics, replay
from delivery.acks import callbacks, correlations
from delivery.conf import conf
from delivery.health import notifications
from delivery.maintenance import (
    archived,
    counters,
    pipeline_runs,
    quota_usage,
    reconciliations,
    recurring,
    retention,
    traffic,
)
from delivery.models import SweepRun
from delivery.ordering import hot_keys
from delivery.processes import registration, task_queue
from delivery.pull import backlog
from delivery.queue import (
    cancel,
    dead_letters,
    fanout,
    lease_rows,
    ordering_keys,
    reassign,
    release,
)
from delivery.replay import restore

logger = logging.getLogger(__name__)

SLICE_S = 0.1
"""Seconds after which a long sweep pauses to let the others run."""
REPORT_INTERVAL_S = 10.0
"""How often a sweep begins although it has nothing to do, so that its row shows that it runs."""
SOON_S = 0.05
"""A sweep due within this many seconds begins now, so that those with the same interval share one
write and one wake-up."""
# A next run later than the interval allows means that the database's clock was set back.
BEGIN = f"""
    UPDATE {SweepRun._meta.db_table} SET next_at = %s, last_started_at = %s,
    last_duration_ms = 0, last_count = 0, last_error = ''
    WHERE name = %s AND (next_at <= %s OR next_at > %s)
"""
BATCH = 500
FALLBACK_INTERVAL_S = 30.0
"""Seconds the fallback run works before it leaves the rest to the next one."""
AUDIT_PAUSE_S = 0.9
"""Pause between slices of 0.1 s of a reconciliation, which is not urgent."""
QUOTA_PAUSE_S = 1.9
"""Pause between slices of 0.1 s of a quota count: it uses at most 1/20 of a core."""
SLOT = 15
"""The sweeps' slot of the counters, separate from those of pumps."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A task to be repeated."""

    name: str
    every_s: float
    work: Callable[[], Iterator[int]]
    """Short steps, each yielding the number of rows it changed; no transaction is open in
    between."""
    idle_s: float = 0.0
    """A longer interval for as long as there is nothing to do."""
    pause_s: float = 0.0
    """Pause between two slices of a long run that is not urgent."""
    has_work: Callable[[], bool] | None = None
    """A check that is cheaper than a run, for an interval so short that it would load an idle
    broker."""


@dataclass(slots=True)
class _Run:
    """A sweep in progress."""

    steps: Iterator[int]
    started: float
    held_until: float
    """When (`time.monotonic`) another process may begin the same sweep."""
    count: int = 0
    spent_s: float = 0.0
    error: str = field(default="")


class SweepScheduler:
    """Runs sweeps in one process: the one that moves a sweep's ``next_at`` forward runs it.

    Remembers when each is due, so that an idle broker rarely queries the database.
    """

    def __init__(self, sweeps: Sequence[Sweep]) -> None:
        self._sweeps = {sweep.name: sweep for sweep in sweeps}
        self._due = dict.fromkeys(self._sweeps, float("-inf"))
        self._open: dict[str, _Run] = {}
        self._last_begun: dict[str, float] = {}
        """When each last began."""
        self._is_new = True
        """Whether the due times have not been read from the database yet."""

    @property
    def is_busy(self) -> bool:
        """Whether a sweep is in progress."""
        return bool(self._open)

    def turn(self) -> int:
        """Run one slice of each due sweep, longest waiting first; return how many began."""
        ticks = time.monotonic()
        if self.rest_s() > 0:
            return 0
        names = sorted(self._due, key=self._due.__getitem__)
        due = [name for name in names if self._due[name] <= ticks + SOON_S]
        fresh = [self._sweeps[name] for name in due if name not in self._open]
        began = self._begin([sweep for sweep in fresh if not self._rests(sweep, ticks)])
        for name in due:
            if name in self._open:
                self._go_on(self._sweeps[name], self._open[name])
        return began

    def rest_s(self) -> float:
        """Return the seconds until a sweep is due."""
        return max(0.0, min(self._due.values()) - time.monotonic())

    def _rests(self, sweep: Sweep, ticks: float) -> bool:
        """Whether there is nothing to do and no need to show that the sweep runs."""
        if sweep.has_work is None:
            return False
        if (
            ticks - self._last_begun.get(sweep.name, float("-inf")) < REPORT_INTERVAL_S
            and not sweep.has_work()
        ):
            self._due[sweep.name] = ticks + max(sweep.every_s, sweep.idle_s)
            return True
        return False

    def _begin(self, sweeps: Sequence[Sweep]) -> int:
        """Begin sweeps that no other process runs; return how many."""
        if not sweeps:
            return 0
        now, ticks = clock.now(), time.monotonic()
        if self._is_new:
            # If another process runs them, most are not due yet: one query finds out.
            self._is_new = False
            due = self._read_due(sweeps, now, ticks)
            sweeps = [sweep for sweep in due if self._due[sweep.name] <= ticks + SOON_S]
        # Sorted by name, so that two processes lock the rows in the same order.
        sweeps = sorted(sweeps, key=lambda sweep: sweep.name)
        begun = [
            sweep
            for sweep, is_claimed in zip(sweeps, _claim(sweeps, now), strict=True)
            if is_claimed
        ]
        for sweep in begun:
            self._open[sweep.name] = _Run(sweep.work(), ticks, ticks + sweep.every_s)
            self._last_begun[sweep.name] = ticks
        self._read_due([sweep for sweep in sweeps if sweep.name not in self._open], now, ticks)
        return len(begun)

    def _read_due(self, sweeps: Sequence[Sweep], now: datetime, ticks: float) -> list[Sweep]:
        """Read when these are due, and create missing rows; return the sweeps that had rows."""
        if not sweeps:
            return []
        names = [sweep.name for sweep in sweeps]
        next_at_by_name = dict(
            SweepRun.objects.filter(name__in=names).values_list("name", "next_at")
        )
        for sweep in sweeps:
            next_at = next_at_by_name.get(sweep.name)
            if next_at is None:
                SweepRun.objects.get_or_create(name=sweep.name, defaults={"next_at": now})
                next_at = now
            rest_s = (next_at - now).total_seconds()
            self._due[sweep.name] = ticks + (max(0.0, rest_s) if rest_s <= sweep.every_s else 0.0)
        return [sweep for sweep in sweeps if sweep.name in next_at_by_name]

    def _go_on(self, sweep: Sweep, run: _Run) -> None:
        started = time.monotonic()
        try:
            done = self._slice(sweep, run, started + SLICE_S)
        except DatabaseFailure as failure:
            # The others still run, and this one again when it is next due.
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
        """Run steps until ``end``; return whether the sweep has finished."""
        for count in run.steps:
            run.count += count
            metrics.SWEEP_ROWS.labels(sweep.name).inc(count)
            if time.monotonic() >= end:
                return False
        return True

    def _report(self, sweep: Sweep, run: _Run) -> None:
        # A short run without results was recorded completely at its start.
        if run.count or run.error or run.spent_s >= SLICE_S:
            SweepRun.objects.filter(name=sweep.name).update(
                last_duration_ms=int(run.spent_s * 1000),
                last_count=run.count,
                last_error=run.error,
            )


def orphans() -> int:
    """Release the deliveries of dead pumps at once."""
    released = 0
    for slot in registration.dead_pump_reaper.dead():
        if registration.reap(slot):
            failpoints.reach("after_reap")
            released += release.release_owner(slot.generation, now=clock.now(), slot=SLOT)
    return released


def not_fanned_out() -> int:
    """Fan out messages that no pump took: the same step as the fast path (S0-33)."""
    before = clock.now() - timedelta(milliseconds=conf().rational_delay_ms)
    return fanout.fan_out_late(BATCH, SLOT, accepted_before=before).message_count


def overdue() -> int:
    """Fire schedules that no schedule runner fired: the same step as the fast path."""
    return recurring.fire_overdue()


def lapsed() -> int:
    """Queue expired leases again that no claim would find."""
    absent = reassign.absent() if reassign.is_needed() else ()
    return release.release_lapsed(now=clock.now(), slot=SLOT, absent=absent)


def reassigned() -> Iterator[int]:
    """Move deliveries of queues' unavailable consumers to others."""
    if reassign.is_needed():
        for given in reassign.reassign(clock.now(), SLOT):
            yield given.total()


def retired() -> Iterator[int]:
    """Cancel deliveries of retired consumers that no other consumer can take."""
    yield from reassigned()
    yield from iter(_cancelled, 0)


class _Waiting:
    """The quota count, and whether its result may have changed."""

    def __init__(self) -> None:
        self._newest = -1

    def run(self) -> Iterator[int]:
        """Count the waiting messages."""
        self._newest = quota_usage.newest()
        yield from quota_usage.count(clock.now())

    def has_work(self) -> bool:
        """Whether messages were accepted since, or some are rejected until fewer wait."""
        return quota_usage.newest() != self._newest or quota_usage.is_any_full()


_waiting = _Waiting()


def old_rows() -> Iterator[int]:
    """Delete rows past their retention; with a lake, other sweeps delete archived rows."""
    yield from retention.delete_replays(clock.now())
    if not conf().lake:
        yield from retention.prune(clock.now(), SLOT)


def archived_rows() -> Iterator[int]:
    """Delete rows that have been archived."""
    if conf().lake:
        yield from archived.prune(SLOT)


def _once(work: Callable[[], int]) -> Callable[[], Iterator[int]]:
    return lambda: (work() for _ in range(1))


AUDITS = (
    Sweep("audit", 60.0, reconciliations.recent, pause_s=AUDIT_PAUSE_S),
    Sweep("audit of everything", 60.0, reconciliations.everything, pause_s=AUDIT_PAUSE_S),
    Sweep("old audits", 3600.0, _once(lambda: reconciliations.forget(clock.now()))),
)
"""These repair nothing: the fallback run has little time and leaves them to the maintenance
process."""


def _replays() -> Iterator[int]:
    return replay.run_each(clock.now(), SLOT)


def _restores() -> Iterator[int]:
    return restore.run_each(clock.now(), SLOT)


def _until_none(work: Callable[[], int]) -> Callable[[], Iterator[int]]:
    return lambda: iter(work, 0)


SWEEPS = (
    Sweep(
        "orphans", 1.0, _once(orphans), has_work=lambda: bool(registration.dead_pump_reaper.dead())
    ),
    Sweep("replays", 0.5, _replays, idle_s=1.0, has_work=replay.is_any_open),
    Sweep("restores", 0.5, _restores, idle_s=1.0, has_work=restore.is_any_open),
    Sweep("schedules", 1.0, _until_none(overdue), idle_s=5.0),
    Sweep("time zones", 60.0, recurring.realign),
    Sweep("undispatched", 5.0, _until_none(not_fanned_out)),
    Sweep("lapsed", 5.0, _once(lapsed)),
    Sweep("reassigned", 2.0, reassigned, idle_s=5.0, has_work=reassign.is_needed),
    Sweep("retired", 5.0, retired),
    Sweep("ordering_keys", 5.0, lambda: ordering_keys.repair(clock.now()), idle_s=15.0),
    Sweep("hot keys", 15.0, lambda: hot_keys.scan(clock.now())),
    Sweep("quotas", 1.0, _waiting.run, pause_s=QUOTA_PAUSE_S, has_work=_waiting.has_work),
    Sweep("notices", 5.0, notifications.sweep),
    Sweep("dead letters", 0.5, _until_none(dead_letters.forward), has_work=dead_letters.has_work),
    Sweep("message moves", 0.5, _until_none(backlog.run), has_work=backlog.has_work),
    Sweep("early acks", 600.0, _once(lambda: callbacks.forget(clock.now()))),
    Sweep("correlations", 60.0, lambda: correlations.forget_provider_statuses(clock.now())),
    Sweep("idempotency", 60.0, lambda: retention.delete_idempotency_keys(clock.now())),
    Sweep("retention", 300.0, old_rows),
    Sweep("archived", 5.0, archived_rows, idle_s=60.0),
    Sweep("old restores", 3600.0, restore.forget),
    Sweep("old notices", 3600.0, lambda: retention.delete_notifications(clock.now())),
    Sweep("sessions", 3600.0, lambda: retention.delete_sessions(clock.now())),
    Sweep("old tasks", 3600.0, _once(lambda: task_queue.forget(clock.now()))),
    Sweep("other schedules", 30.0, _once(task_queue.stop_other_schedules)),
    Sweep("tries", 60.0, _once(lambda: retention.delete_sign_in_attempts(clock.now()))),
    Sweep("counters", 60.0, _once(counters.repair)),
    Sweep("traffic", 15.0, lambda: traffic.fold(clock.now())),
    Sweep("old traffic", 3600.0, _once(lambda: traffic.forget(clock.now()))),
    Sweep("sequences", 3600.0, lambda: sequence.forget(clock.now())),
    Sweep("old workers", 3600.0, _until_none(lambda: lease_rows.delete_workers(clock.now()))),
    Sweep("pipeline", 15.0, _once(lambda: pipeline_runs.reap(clock.now()))),
    Sweep("old runs", 3600.0, lambda: pipeline_runs.forget(clock.now())),
)


def rounds() -> SweepScheduler:
    """Return the maintenance process's scheduler of all sweeps."""
    return SweepScheduler((*SWEEPS, *AUDITS))


def run_due() -> int:
    """Run every due sweep that no other process runs, as the fallback; return how many."""
    end = time.monotonic() + FALLBACK_INTERVAL_S
    scheduler = SweepScheduler(SWEEPS)
    began = scheduler.turn()
    while scheduler.is_busy and time.monotonic() < end:
        began += scheduler.turn()
    return began


def _claim(sweeps: Sequence[Sweep], now: datetime) -> list[int]:
    """Move the due times of these forward, in one round trip and one commit.

    Returns 1 for each sweep that was due, 0 if another process was faster.
    """
    statements: list[raw.Statement] = []
    due_by = raw.text(now + timedelta(seconds=SOON_S))
    for sweep in sweeps:
        soon = raw.text(now + timedelta(seconds=sweep.every_s))
        statements.append((BEGIN, [soon, raw.text(now), sweep.name, due_by, soon]))
    if len(statements) < 2:  # a single statement needs no transaction: two round trips less
        return [raw.execute(sql, values) for sql, values in statements]
    return transactions.run(lambda: raw.execute_all(statements))


def _cancelled() -> int:
    return cancel.cancel_retired(clock.now(), SLOT, BATCH)
