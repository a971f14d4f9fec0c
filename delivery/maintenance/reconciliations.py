"""Reconcile the last hours at short intervals and, once a day, everything."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta

from channels_app.database import clock
from delivery.conf import conf
from delivery.maintenance.reconciler import Reconciler, Wanted
from delivery.models import ReconciliationReport
from delivery.processes import registration

Span = ReconciliationReport.Span
MAX_IDS = 20
MAX_FINDINGS = 200
"""Findings stored in one report; the total number of rows is always stored."""
MAX_COUNTED = 1_000_000
"""Most deliveries of a consumer whose counters are compared: that takes about a second, during
which the maintenance process does nothing else. The command compares all counters."""
RETENTION = {Span.RECENT: timedelta(days=7), Span.EVERYTHING: timedelta(days=400)}


def recent() -> Iterator[int]:
    """Reconcile the last hours when that is due; yields zeros, because it repairs nothing."""
    now = clock.now()
    if _is_due(Span.RECENT, conf().reconcile_interval_s, now):
        wanted = Wanted(since=now - timedelta(seconds=conf().reconcile_recent_s), counters=False)
        yield from _run(wanted, Span.RECENT, now)


def everything() -> Iterator[int]:
    """Reconcile everything when that is due."""
    now = clock.now()
    if _is_due(Span.EVERYTHING, conf().reconcile_full_interval_s, now):
        yield from _run(Wanted(most_counted=MAX_COUNTED), Span.EVERYTHING, now)


def keep(reconciler: Reconciler, span: Span, began: datetime) -> ReconciliationReport:
    """Store the result of a reconciliation."""
    result = reconciler.result
    states: dict[str, int] = {}
    for account in result.accounts.values():
        for state, number in account.states.items():
            states[state] = states.get(state, 0) + number
    return ReconciliationReport.objects.create(
        span=span,
        since=reconciler.wanted.since,
        until=began,
        started_at=began,
        finished_at=clock.now(),
        message_count=result.looked["messages"],
        delivery_count=result.looked["deliveries"],
        states=states,
        gap=result.gap,
        checks={check.value: number for check, number in result.by_check().items() if number},
        findings=[
            asdict(finding) | {"sentence": finding.sentence}
            for finding in reconciler.findings()[:MAX_FINDINGS]
        ],
    )


def newest() -> dict[str, ReconciliationReport]:
    """Return the last report of each span; a span without any is absent."""
    found = {span: _newest(span) for span in Span}
    return {span.value: report for span, report in found.items() if report is not None}


def forget(now: datetime) -> int:
    """Delete reports past their retention; return how many."""
    return sum(
        ReconciliationReport.objects.filter(span=span, finished_at__lt=now - kept).delete()[0]
        for span, kept in RETENTION.items()
    )


def _run(wanted: Wanted, span: Span, now: datetime) -> Iterator[int]:
    reconciler = Reconciler(wanted, now=now, most_ids=MAX_IDS)
    for _ in reconciler.steps():
        yield 0
    keep(reconciler, span, now)


def _is_due(span: Span, every_s: int, now: datetime) -> bool:
    if not every_s or not _is_settled(now):
        return False
    last = _newest(span)
    # A last run in the future means that the clock was set back.
    return last is None or not now - timedelta(seconds=every_s) < last.started_at <= now


def _is_settled(now: datetime) -> bool:
    """Whether a pump has run long enough: just after a start many deliveries are late."""
    since = now - timedelta(seconds=conf().reconcile_grace_s)
    return any(pump.started_at < since for pump in registration.living())


def _newest(span: Span) -> ReconciliationReport | None:
    return ReconciliationReport.objects.filter(span=span).order_by("-finished_at").first()
