"""Due times: each consumer's earliest due delivery, read without locking rows."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import pytest

from channels_app.database import clock
from delivery.pump import assignment
from delivery.queue import due_times, fanout
from tests.support.counts import make_deliveries
from tests.support.pumping import make_channel, make_consumer, publish

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"


def test_next_due_returns_when_each_consumers_earliest_unfinished_delivery_is_due() -> None:
    soon = clock.now() + timedelta(hours=1)
    consumer, finished = (make_consumer(make_channel(), NOWHERE) for _ in range(2))
    both = [consumer.id, finished.id]
    make_deliveries(finished, 20)
    make_deliveries(finished, 20, priority=9, state="delivered")
    assert due_times.next_due(both) == {}
    publish(consumer.channel, b"x", due_at=soon, priority=0)
    publish(consumer.channel, b"x", due_at=soon + timedelta(hours=1), priority=9)
    fanout.fan_out(1000, slot=0)
    found = due_times.next_due(both)
    assert set(found) == {consumer.id}
    assert abs(found[consumer.id] - soon) < timedelta(milliseconds=1)
    assert set(due_times.by_priority(both)[consumer.id]) == {0, 9}
    assert due_times.next_due([]) == {}


def test_a_pump_reads_due_times_in_batches_of_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """New consumers come first, however often the configuration changes."""
    monkeypatch.setattr(assignment, "DISCOVER_AT_ONCE", 2)
    asked: list[int] = []

    def by_priority(consumer_ids: Iterable[int]) -> dict[int, dict[int, datetime]]:
        asked.extend(consumer_ids)
        return {}

    monkeypatch.setattr(due_times, "by_priority", by_priority)
    channel = make_channel()
    ids = [make_consumer(channel, NOWHERE).id for _ in range(5)]
    known = assignment.Assignment(1)
    known.refresh()
    assert known.discover(60.0) < 60.0  # the others are queried soon
    new = make_consumer(channel, NOWHERE).id
    known.refresh()
    known.discover(60.0)
    assert asked[:3] == [*ids[:2], new]
    while known.discover(60.0) < 60.0:
        pass
    assert sorted(asked) == sorted([*ids, new])
