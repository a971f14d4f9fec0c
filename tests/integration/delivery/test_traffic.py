"""Traffic statistics: attempts are aggregated by minute and hour exactly once."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from channels_app.database import clock
from channels_app.models import Consumer
from delivery.core.timing import BUCKETS
from delivery.maintenance import traffic
from delivery.models import Attempt, Traffic, TrafficMark
from delivery.models.traffic import ALL, HOUR_S, MINUTE_S
from tests.support import errors
from tests.support.counts import key_at, make_deliveries, make_messages
from tests.support.factories import ConsumerFactory

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def passed(
    consumer: Consumer, at: datetime, outcome: str = "delivered", *, count: int = 1, ms: int = 0
) -> None:
    """Create attempts that ended at an instant, ``ms`` after their messages were accepted."""
    state = {"delivered": "delivered", "timeout": "queued", "gone": "dead"}[outcome]
    rows = make_deliveries(
        consumer,
        count,
        accepted_at=at - timedelta(milliseconds=ms),
        state=state,
        attempt_count=1,
        due_at=at if state == "queued" else None,
    )
    Attempt.objects.bulk_create(
        [
            Attempt(id=key_at(at), delivery_id=row.id, number=1, started_at=at, outcome=outcome)
            for row in rows
        ]
    )


def fold(now: datetime) -> None:
    """Aggregate as the maintenance process does."""
    assert not any(traffic.fold(now))


def totals(now: datetime, consumer_id: int = ALL) -> tuple[int, ...]:
    """Return the accepted, delivered, failed and dead of the last three hours."""
    spans = traffic.series(now, hours=3, step_s=HOUR_S, consumer_id=consumer_id)
    return tuple(
        sum(getattr(span, name) for span in spans)
        for name in ("accepted", "delivered", "failed", "dead")
    )


def test_traffic_is_counted_per_minute_and_hour() -> None:
    one, other = ConsumerFactory.create(), ConsumerFactory.create()
    passed(one, NOON, count=3, ms=15)
    passed(one, NOON + timedelta(minutes=1), "timeout", count=2)
    passed(other, NOON + timedelta(minutes=1), "gone")
    now = NOON + timedelta(minutes=5)

    fold(now)

    spans = traffic.series(now, hours=1, step_s=MINUTE_S)
    told = {
        span.begins_at: (span.delivered, span.failed, span.dead)
        for span in spans
        if span.delivered or span.failed
    }
    assert told == {NOON: (3, 0, 0), NOON + timedelta(minutes=1): (0, 3, 1)}
    assert len(spans) == 60
    assert totals(now) == (6, 3, 3, 1)
    assert totals(now, one.id) == (0, 3, 2, 0)
    assert totals(now, other.id) == (0, 0, 1, 1)
    at_noon = next(span for span in spans if span.begins_at == NOON)
    assert at_noon.latency == [3 if place == 4 else 0 for place in range(BUCKETS)]  # 10 to 20 ms


def test_slices_add_up_and_nothing_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "SLICE", 3)
    consumers = ConsumerFactory.create_batch(2)
    for minute in range(4):
        for consumer in consumers:
            passed(consumer, NOON + timedelta(minutes=minute), count=4)
    now = NOON + timedelta(minutes=10)

    for _ in range(3):
        fold(now)

    assert totals(now) == (32, 32, 0, 0)
    assert totals(now, consumers[0].id) == (0, 16, 0, 0)
    later = now + timedelta(minutes=1)
    passed(consumers[0], now)
    fold(later)
    assert totals(later) == (33, 33, 0, 0)


def test_the_newest_seconds_wait_for_open_transactions() -> None:
    passed(ConsumerFactory.create(), NOON)

    fold(NOON + timedelta(seconds=9))
    assert totals(NOON) == (0, 0, 0, 0)
    fold(NOON + timedelta(seconds=11))
    assert totals(NOON) == (1, 1, 0, 0)


def test_two_maintenance_processes_count_traffic_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passed(ConsumerFactory.create(), NOON, count=5)
    now = NOON + timedelta(minutes=1)
    look = traffic._scan

    def overtaken(mark: TrafficMark, then: datetime) -> object:
        seen = look(mark, then)
        monkeypatch.setattr(traffic, "_scan", look)
        fold(then)  # a rival aggregates between our read and write
        return seen

    monkeypatch.setattr(traffic, "_scan", overtaken)
    fold(now)

    assert totals(now) == (5, 5, 0, 0)


def test_a_slice_that_a_deadlock_undid_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = ConsumerFactory.create()
    passed(consumer, NOON, count=2)
    fold(NOON + timedelta(minutes=1))
    passed(consumer, NOON + timedelta(minutes=1), count=3)
    write = traffic._write
    errors.of_mysql(monkeypatch)

    def undone(mark: TrafficMark, seen: traffic._Slice) -> bool:
        write(mark, seen)
        monkeypatch.setattr(traffic, "_write", write)
        raise OperationalError(1213, "Deadlock found")

    monkeypatch.setattr(traffic, "_write", undone)
    fold(NOON + timedelta(minutes=5))

    assert totals(NOON) == (5, 5, 0, 0)


def test_many_rows_are_changed_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "BATCH_SIZE", 2)
    consumers = ConsumerFactory.create_batch(4)
    for minute in (0, 1):
        for consumer in consumers:
            passed(consumer, NOON + timedelta(minutes=minute))
        with CaptureQueriesContext(connection) as queries:
            fold(NOON + timedelta(minutes=minute, seconds=30))

    table = connection.ops.quote_name(Traffic._meta.db_table)
    # Updates the hours of each consumer and of the total; the rows of the minute are new.
    changes = [one for one in queries if one["sql"].startswith(f"UPDATE {table}")]
    assert len(changes) == 3
    assert totals(NOON) == (8, 8, 0, 0)


def test_an_empty_traffic_row_counts_as_zero() -> None:
    Traffic.objects.create(span_s=MINUTE_S, begins_at=NOON)

    assert not any(sum(span.latency) for span in traffic.series(NOON, hours=1, step_s=MINUTE_S))


def test_the_first_run_covers_the_last_hour() -> None:
    consumer = ConsumerFactory.create()
    passed(consumer, NOON - timedelta(days=1))
    passed(consumer, NOON - timedelta(minutes=50))

    fold(NOON)

    assert totals(NOON) == (1, 1, 0, 0)


def test_messages_without_consumers_count_as_accepted() -> None:
    make_messages(ConsumerFactory.create(), 2, accepted_at=NOON)

    fold(NOON + timedelta(minutes=1))

    assert totals(NOON) == (2, 0, 0, 0)


def test_attempts_cancelled_by_the_broker_are_no_failures() -> None:
    passed(ConsumerFactory.create(), NOON, "timeout")
    Attempt.objects.update(outcome="interrupted")

    fold(NOON + timedelta(minutes=1))

    assert totals(NOON) == (1, 0, 0, 0)


def test_a_slow_clock_causes_no_negative_latency() -> None:
    passed(ConsumerFactory.create(), NOON, ms=-500)

    fold(NOON + timedelta(minutes=1))

    assert Traffic.objects.filter(span_s=MINUTE_S, delivered=1).get().latency[0] == 1


def test_the_worst_consumers_come_first() -> None:
    fine, bad, worse = ConsumerFactory.create_batch(3)
    passed(fine, NOON, count=9)
    passed(bad, NOON, "timeout", count=2)
    passed(worse, NOON, "timeout", count=3)
    now = NOON + timedelta(minutes=1)
    fold(now)

    assert [record.consumer_id for record in traffic.worst(now, hours=1, most=5)] == [
        worse.id,
        bad.id,
    ]
    assert [record.consumer_id for record in traffic.worst(now, hours=1, most=1)] == [worse.id]


def test_failing_consumers_stay_listed_when_a_new_hour_begins() -> None:
    bad = ConsumerFactory.create()
    passed(bad, NOON - timedelta(minutes=5), "timeout")
    now = NOON + timedelta(seconds=30)
    fold(now)

    assert [record.consumer_id for record in traffic.worst(now, hours=1, most=5)] == [bad.id]


def test_old_minutes_are_deleted_before_hours() -> None:
    now = clock.now()
    for days in (1, 3, 16):
        for span_s in (MINUTE_S, HOUR_S):
            at = now - timedelta(days=days)
            Traffic.objects.create(span_s=span_s, begins_at=at, latency=[0] * BUCKETS)

    assert traffic.forget(now) == 3
    assert sorted(Traffic.objects.values_list("span_s", flat=True)) == [60, 3600, 3600]
