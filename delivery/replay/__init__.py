"""Replay finished deliveries, or create deliveries of past messages, in any number.

wanted = replay.parse({"channel": "orders", "outcomes": ["timeout"]})
consumers = replay.consumers_of(wanted)
replay.count(wanted, consumers, now)
job = replay.create(wanted, consumers, Principal("user:alice", "outage"), now=now)
while replay.run_due(now, slot):
    ...
"""

from delivery.replay.filters import ReplayFilter, load, parse
from delivery.replay.requests import (
    Count,
    backfill,
    cancel,
    consumers_of,
    count,
    create,
    message_sample,
    replay_one,
    sample,
)
from delivery.replay.runner import is_any_open, run_due, run_each, run_slice

__all__ = [
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
]
