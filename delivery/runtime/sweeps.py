"""Define the sweeps, fail-safes and housekeeping, each with its interval; any process runs them."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from channels_app import clock, failpoints
from channels_app.steps import sequence
from delivery.conf import conf
from delivery.runtime import (
    dead_letters,
    message_moves,
    notifications,
    reconciliations,
    recurring,
    registration,
    task_queue,
)
from delivery.runtime.sweep_scheduler import Sweep, SweepScheduler
from delivery.runtime.wakeups import notify_pumps
from delivery.steps import (
    acknowledge,
    archived,
    cancel,
    correlate,
    counter_repair,
    fanout,
    hot_keys,
    lanes,
    leases,
    pipeline_runs,
    quotas,
    reassign,
    release,
    replay,
    retention,
    traffic,
)
from delivery.steps.replay import restore

BATCH = 500
FALLBACK_INTERVAL_S = 30.0
"""Seconds the fallback run works before it leaves the rest to the next one."""
AUDIT_PAUSE_S = 0.9
"""Pause between slices of 0.1 s of a reconciliation, which is not urgent."""
QUOTA_PAUSE_S = 1.9
"""Pause between slices of 0.1 s of a quota count: it uses at most 1/20 of a core."""
SLOT = 15
"""The sweeps' slot of the counters, separate from those of pumps."""


def orphans() -> int:
    """Release the deliveries of dead pumps at once."""
    released = 0
    for slot in registration.dead_pump_reaper.dead():
        if registration.reap(slot):
            failpoints.reach("after_burial")
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
            notify_pumps(given)
            yield given.total()


def retired() -> Iterator[int]:
    """Cancel deliveries of retired consumers that no other consumer can take."""
    yield from reassigned()
    yield from iter(_cancelled, 0)


def _cancelled() -> int:
    return cancel.cancel_retired(clock.now(), SLOT, BATCH)


class _Waiting:
    """The quota count, and whether its result may have changed."""

    def __init__(self) -> None:
        self._newest = -1

    def run(self) -> Iterator[int]:
        """Count the waiting messages."""
        self._newest = quotas.newest()
        yield from quotas.count(clock.now())

    def has_work(self) -> bool:
        """Whether messages were accepted since, or some are rejected until fewer wait."""
        return quotas.newest() != self._newest or quotas.is_any_full()


_waiting = _Waiting()


def _once(work: Callable[[], int]) -> Callable[[], Iterator[int]]:
    return lambda: (work() for _ in range(1))


def old_rows() -> Iterator[int]:
    """Delete rows past their retention; with a lake, other sweeps delete archived rows."""
    yield from retention.delete_replays(clock.now())
    if not conf().lake:
        yield from retention.prune(clock.now(), SLOT)


def archived_rows() -> Iterator[int]:
    """Delete rows that have been archived."""
    if conf().lake:
        yield from archived.prune(SLOT)


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
    Sweep("undispatched", 5.0, _until_none(not_fanned_out)),
    Sweep("lapsed", 5.0, _once(lapsed)),
    Sweep("reassigned", 2.0, reassigned, idle_s=5.0, has_work=reassign.is_needed),
    Sweep("retired", 5.0, retired),
    Sweep("lanes", 5.0, lambda: lanes.repair(clock.now()), idle_s=15.0),
    Sweep("hot keys", 15.0, lambda: hot_keys.scan(clock.now())),
    Sweep("quotas", 1.0, _waiting.run, pause_s=QUOTA_PAUSE_S, has_work=_waiting.has_work),
    Sweep("notices", 5.0, notifications.sweep),
    Sweep("dead letters", 0.5, _until_none(dead_letters.forward), has_work=dead_letters.has_work),
    Sweep("message moves", 0.5, _until_none(message_moves.run), has_work=message_moves.has_work),
    Sweep("early acks", 600.0, _once(lambda: acknowledge.forget(clock.now()))),
    Sweep("correlations", 60.0, lambda: correlate.forget(clock.now())),
    Sweep("idempotency", 60.0, lambda: retention.delete_idempotency_keys(clock.now())),
    Sweep("retention", 300.0, old_rows),
    Sweep("archived", 5.0, archived_rows, idle_s=60.0),
    Sweep("old restores", 3600.0, restore.forget),
    Sweep("old notices", 3600.0, lambda: retention.delete_notifications(clock.now())),
    Sweep("sessions", 3600.0, lambda: retention.delete_sessions(clock.now())),
    Sweep("old tasks", 3600.0, _once(lambda: task_queue.forget(clock.now()))),
    Sweep("other schedules", 30.0, _once(task_queue.stop_other_schedules)),
    Sweep("tries", 60.0, _once(lambda: retention.delete_sign_in_attempts(clock.now()))),
    Sweep("counters", 60.0, _once(counter_repair.repair)),
    Sweep("traffic", 15.0, lambda: traffic.fold(clock.now())),
    Sweep("old traffic", 3600.0, _once(lambda: traffic.forget(clock.now()))),
    Sweep("sequences", 3600.0, lambda: sequence.forget(clock.now())),
    Sweep("old workers", 3600.0, _until_none(lambda: leases.delete_workers(clock.now()))),
    Sweep("pipeline", 15.0, _once(lambda: pipeline_runs.reap(clock.now()))),
    Sweep("old runs", 3600.0, lambda: pipeline_runs.forget(clock.now())),
)


AUDITS = (
    Sweep("audit", 60.0, reconciliations.recent, pause_s=AUDIT_PAUSE_S),
    Sweep("audit of everything", 60.0, reconciliations.everything, pause_s=AUDIT_PAUSE_S),
    Sweep("old audits", 3600.0, _once(lambda: reconciliations.forget(clock.now()))),
)
"""These repair nothing: the fallback run has little time and leaves them to the maintenance
process."""


def rounds() -> SweepScheduler:
    """Return the maintenance process's scheduler of all sweeps."""
    return SweepScheduler((*SWEEPS, *AUDITS))


def run_due() -> int:
    """Run every due sweep that no other process runs, as the fallback; return how many."""
    end = time.monotonic() + FALLBACK_INTERVAL_S
    mine = SweepScheduler(SWEEPS)
    began = mine.turn()
    while mine.is_busy and time.monotonic() < end:
        began += mine.turn()
    return began
