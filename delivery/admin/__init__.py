"""Register the console's pages of deliveries, queues, replays and the pipeline."""

from delivery.admin import (
    archive,
    attempt,
    consumer,
    delivery,
    erasure,
    forecast,
    health,
    lake,
    ordering_key,
    pipeline,
    reconciliation,
    replays,
    restore,
    runtime,
    schedule,
    triage,
)

__all__ = [
    "archive",
    "attempt",
    "consumer",
    "delivery",
    "erasure",
    "forecast",
    "health",
    "lake",
    "ordering_key",
    "pipeline",
    "reconciliation",
    "replays",
    "restore",
    "runtime",
    "schedule",
    "triage",
]
