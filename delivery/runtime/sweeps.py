"""Sweeps: fail-safes and housekeeping, each on its own clock, run by whoever comes first."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.db import Error as DatabaseFailure
from django.db.models import Q

from channels_app import clock
from delivery import metrics
from delivery.conf import conf
from delivery.models import SweepRun
from delivery.runtime import slots
from delivery.steps import cancel, dispatch, recount, release, replay, retention

logger = logging.getLogger(__name__)

BATCH = 500
BUDGET_S = 2.0
"""Seconds that a sweep in batches may take before the others have their turn."""
SLOT = 15
"""The sweeps' share of the counters, apart from the pumps'."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Something that has to be done again and again."""

    name: str
    every_s: float
    work: Callable[[], int]
    """Returns the number of rows it touched."""


def orphans() -> int:
    """Give back at once what pumps held that no longer live."""
    released = 0
    for slot in slots.mourner.dead():
        if slots.bury(slot):
            released += release.release_owner(slot.generation, now=clock.now(), slot=SLOT)
    return released


def undispatched() -> int:
    """Fan out messages that no pump took: the same step as the fast path (S0-33)."""
    before = clock.now() - timedelta(milliseconds=conf().rational_delay_ms)
    return dispatch.dispatch_late(BATCH, SLOT, accepted_before=before).message_count


def retired() -> int:
    """Cancel what waits for consumers that were removed; a large pile takes several runs."""
    total = 0
    end = time.monotonic() + BUDGET_S
    while time.monotonic() < end and (count := cancel.cancel_retired(clock.now(), SLOT, BATCH)):
        total += count
    return total


SWEEPS = (
    Sweep("orphans", 1.0, orphans),
    Sweep("replays", 0.5, lambda: replay.run_due(clock.now(), SLOT)),
    Sweep("undispatched", 5.0, undispatched),
    Sweep("lapsed", 5.0, lambda: release.release_lapsed(now=clock.now(), slot=SLOT)),
    Sweep("retired", 5.0, retired),
    Sweep("idempotency", 60.0, lambda: retention.forget_keys(clock.now())),
    Sweep("retention", 300.0, lambda: retention.prune(clock.now(), SLOT)),
    Sweep("counters", 60.0, recount.mend),
)


def run_due() -> int:
    """Run every sweep whose time has come and that nobody else is running; returns how many."""
    return sum(_run(sweep) for sweep in SWEEPS)


def seconds_until_next() -> float:
    """How long until a sweep wants to run; at most the shortest rhythm."""
    return min(sweep.every_s for sweep in SWEEPS) / 2


def _run(sweep: Sweep) -> bool:
    now = clock.now()
    mine = SweepRun.objects.filter(name=sweep.name)
    soon = now + timedelta(seconds=sweep.every_s)
    # Later than its rhythm allows: the database's clock was set back.
    due = Q(next_at__lte=now) | Q(next_at__gt=soon)
    if not mine.filter(due).update(next_at=soon, last_started_at=now):
        if not mine.exists():
            SweepRun.objects.get_or_create(name=sweep.name, defaults={"next_at": now})
        return False
    started = time.monotonic()
    count, error = 0, ""
    try:
        count = sweep.work()
    except DatabaseFailure as failure:
        # The others still run, and this one again at its next time.
        error = f"{type(failure).__name__}: {failure}"[:500]
        logger.warning("sweep %s failed: %s", sweep.name, error)
    metrics.SWEPT.labels(sweep.name).inc(count)
    mine.update(
        last_duration_ms=int((time.monotonic() - started) * 1000),
        last_count=count,
        last_error=error,
    )
    return True
