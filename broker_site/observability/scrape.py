"""Collect everything that /metrics shows, from all processes and from the database."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db import Error as DatabaseFailure
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker_site import env
from broker_site.observability import backlog
from broker_site.observability.metric_files import Files

# Imported so that counters exist as zeros from the first scrape on.
from channels_app import metrics as accepting  # noqa: F401
from channels_app.conf import conf
from channels_app.database import clock
from channels_app.ingest.storage import disks
from channels_app.models import Channel, QuotaUsage
from channels_app.registry import data_encryption
from delivery import metrics as delivering  # noqa: F401
from delivery.core.lifecycle import DeliveryState
from delivery.core.reconciliation import Check
from delivery.maintenance import pipeline_runs, quota_usage, reconciliations
from delivery.models import PipelineRun, ReconciliationReport
from delivery.ordering import hot_keys
from delivery.processes import registration
from delivery.queue import timeline
from pipeline.contract.jobs import JOBS

WINDOWS = {
    "1m": timedelta(minutes=1),
    "5m": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
}


class Tables(Collector):
    """Metrics read from the tables at scrape time, for the whole installation."""

    def collect(self) -> Iterator[Metric]:
        """The metrics of the tables; without a database only that it is unavailable."""
        try:
            families = list(_read())
        except DatabaseFailure:
            families = []
        up = "Whether the database answered this scrape."
        yield GaugeMetricFamily("hookstation_database_up", up, value=1 if families else 0)
        yield from families


def registry() -> CollectorRegistry:
    """The registry of one scrape: the process's own metrics, or those of all processes."""
    merged = CollectorRegistry()
    merged.register(_processes())
    merged.register(Tables())
    return merged


def _processes() -> Collector:
    # The condition by which prometheus_client chooses where counters are stored.
    if not env.is_set("PROMETHEUS_MULTIPROC_DIR"):
        return REGISTRY
    own = Path(settings.PROMETHEUS_DIR)
    if settings.ENVIRONMENT.metrics_dir:
        return Files(own)
    return Files(own, [path for path in own.parent.iterdir() if path.is_dir()])


def _read() -> Iterator[Metric]:
    now = backlog.read()
    depth = GaugeMetricFamily(
        "hookstation_queue_depth", "Deliveries in each state.", labels=["state"]
    )
    for state, count in now.by_state.items():
        depth.add_metric([state], count)
    yield depth
    yield GaugeMetricFamily(
        "hookstation_dead_letters",
        "Dead deliveries that were not replayed.",
        value=now.by_state[DeliveryState.DEAD],
    )
    yield GaugeMetricFamily(
        "hookstation_oldest_due_seconds",
        "Age of the oldest due delivery that waits only for the broker.",
        value=backlog.oldest_due_s(now),
    )
    living = registration.living()
    yield GaugeMetricFamily(
        "hookstation_pumps", "Pumps with a heartbeat, on all hosts.", value=len(living)
    )
    yield GaugeMetricFamily(
        "hookstation_pump_clock_offset_seconds",
        "Largest offset of a pump host's clock from the database's; positive is ahead.",
        value=max((slot.clock_offset_ms for slot in living), key=abs, default=0) / 1000,
    )
    yield from _limits()
    sealing = data_encryption.encrypting_key_id()
    yield GaugeMetricFamily(
        "hookstation_processes_without_key",
        "Running processes that lack the current encryption key, or one that they needed.",
        value=sum(holder.lacks(sealing) for holder in registration.holders()),
    )
    yield from _hot_keys()
    yield from _times()
    yield from _audits(now.gap)
    yield from _pipeline()


def _limits() -> Iterator[Metric]:
    """Waiting messages, used shares of quotas, and free disk space."""
    waiting = QuotaUsage.of(QuotaUsage.Scope.ALL, 0)
    yield GaugeMetricFamily(
        "hookstation_waiting_messages",
        "Messages that wait for a delivery, as last counted.",
        value=waiting.messages,
    )
    yield GaugeMetricFamily(
        "hookstation_waiting_bytes", "Bytes of their bodies.", value=waiting.bytes
    )
    used = GaugeMetricFamily(
        "hookstation_quota_used_ratio",
        "Largest share of its limit that a channel or team uses; at 1 messages are refused.",
        labels=["scope"],
    )
    for scope, share in quota_usage.largest_shares().items():
        used.add_metric([scope], share)
    yield used
    yield GaugeMetricFamily(
        "hookstation_disk_free_bytes",
        "Free bytes for messages, as this host sees them; the minimum of its disks.",
        value=min(room.free for room in disks.rooms()),
    )
    yield GaugeMetricFamily(
        "hookstation_disk_reserve_bytes",
        "Free bytes below which no message is accepted.",
        value=conf().disk_reserve_bytes,
    )


def _hot_keys() -> Iterator[Metric]:
    """The number of hot keys and the longest one; only the console shows their names."""
    count, waiting = hot_keys.totals()
    yield GaugeMetricFamily(
        "hookstation_hot_keys",
        "Ordering keys that get more messages than can be sent one at a time.",
        value=count,
    )
    yield GaugeMetricFamily(
        "hookstation_hot_key_waiting",
        "Deliveries behind the head of the longest hot key.",
        value=waiting,
    )


def _times() -> Iterator[Metric]:
    """Upcoming messages, and the offset of this host's clock."""
    upcoming = GaugeMetricFamily(
        "hookstation_timeline_upcoming",
        "Messages due within the window from now; at most about 100,000 are counted.",
        labels=["window"],
    )
    channels = list(Channel.objects.order_by("id").values_list("id", flat=True))
    counts = timeline.upcoming(channels, clock.now(), list(WINDOWS.values()))
    for window, count in zip(WINDOWS, counts, strict=True):
        upcoming.add_metric([window], count)
    yield upcoming
    yield GaugeMetricFamily(
        "hookstation_clock_offset_seconds",
        "How far the clock of this host is ahead of the database's.",
        value=clock.offset().seconds,
    )


def _audits(gap: int) -> Iterator[Metric]:
    """Rows that do not add up, by the current counters and by the last reconciliations."""
    reports = reconciliations.newest()
    yield GaugeMetricFamily(
        "hookstation_reconciliation_gap",
        "Discrepancies by the current counters or the last reconciliation; must be 0.",
        value=max(abs(gap), *(report.gap for report in reports.values()), 0),
    )
    findings = GaugeMetricFamily(
        "hookstation_reconciliation_findings",
        "Discrepancies that the last reconciliations found.",
        labels=["check"],
    )
    for check in Check:
        of_each = (report.checks.get(check.value, 0) for report in reports.values())
        findings.add_metric([check.value], max(of_each, default=0))
    yield findings
    ended = GaugeMetricFamily(
        "hookstation_reconciliation_timestamp_seconds",
        "When the last reconciliation of each span ended; 0: never.",
        labels=["span"],
    )
    for span in ReconciliationReport.Span.values:
        report = reports.get(span)
        ended.add_metric([span], report.finished_at.timestamp() if report else 0)
    yield ended


def _pipeline() -> Iterator[Metric]:
    """Last success of each job, its number of rows, and which jobs are running."""
    done = pipeline_runs.latest(PipelineRun.State.FINISHED)
    working = PipelineRun.objects.filter(state=PipelineRun.State.RUNNING)
    at_work = set(working.values_list("job", flat=True))
    ended = GaugeMetricFamily(
        "hookstation_pipeline_last_success_seconds",
        "When each job of the pipeline last succeeded, in Unix time; 0: never.",
        labels=["job"],
    )
    rows = GaugeMetricFamily(
        "hookstation_pipeline_rows", "Rows that the last successful run read.", labels=["job"]
    )
    running = GaugeMetricFamily(
        "hookstation_pipeline_running", "Whether a run of the job is in progress.", labels=["job"]
    )
    for job in JOBS:
        run = done.get(job)
        at = run.finished_at if run else None
        ended.add_metric([job], at.timestamp() if at else 0)
        rows.add_metric([job], run.row_count if run else 0)
        running.add_metric([job], job in at_work)
    yield from (ended, rows, running)
