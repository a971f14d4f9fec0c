"""Replay finished deliveries, or create deliveries of past messages, in any number.

wanted = replay.parse({"channel": "orders", "outcomes": ["timeout"]})
consumers = replay.consumers_of(wanted)
replay.count(wanted, consumers, now)
job = replay.create(wanted, consumers, Principal("user:alice", "outage"), now=now)
while replay.run_due(now, slot):
    ...
"""

from delivery.steps.replay.filters import (
    BACKFILL_FIELDS,
    HIGHEST_STATUS,
    LOWEST_STATUS,
    ReplayFilter,
    load,
    parse,
    shown,
)
from delivery.steps.replay.requests import cancel, create, replay_one
from delivery.steps.replay.scope import Count, backfill, consumers_of, count, message_sample, sample
from delivery.steps.replay.slices import is_any_open, run_due, run_each, run_slice

__all__ = [
    "BACKFILL_FIELDS",
    "HIGHEST_STATUS",
    "LOWEST_STATUS",
    "Count",
    "ReplayFilter",
    "backfill",
    "cancel",
    "consumers_of",
    "count",
    "create",
    "is_any_open",
    "load",
    "message_sample",
    "parse",
    "replay_one",
    "run_due",
    "run_each",
    "run_slice",
    "sample",
    "shown",
]
