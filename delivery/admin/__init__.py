"""The console's pages of deliveries and of what carries them; importing them registers them."""

from delivery.admin import (
    accounting,
    attempt,
    consumer,
    delivery,
    forecast,
    health,
    lake,
    notice,
    pipeline_runs,
    pipeline_schedules,
    replay,
    restore,
    runtime,
    traffic,
    triage,
    usage,
)

__all__ = [
    "accounting",
    "attempt",
    "consumer",
    "delivery",
    "forecast",
    "health",
    "lake",
    "notice",
    "pipeline_runs",
    "pipeline_schedules",
    "replay",
    "restore",
    "runtime",
    "traffic",
    "triage",
    "usage",
]
