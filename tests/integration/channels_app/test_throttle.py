"""A producer's rate limit: exact under concurrency, and separate for each producer."""

from datetime import UTC, datetime, timedelta

import pytest

from channels_app.database import clock
from channels_app.ingest import limits
from channels_app.models import ProducerRate
from tests.support.factories import ProducerFactory
from tests.support.threads import in_thread

pytestmark = pytest.mark.django_db


class Watch:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.instant = datetime(2026, 6, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.instant

    def move(self, seconds: float) -> None:
        self.instant += timedelta(seconds=seconds)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Replaces the database's clock."""
    watch = Watch()
    monkeypatch.setattr(clock, "now", watch)
    return watch


def test_throttle_allows_the_burst_then_the_rate(watch: Watch) -> None:
    producer = ProducerFactory.create(rate_per_second=2, rate_burst=3)
    assert [limits.take_from_rate(producer) for _ in range(3)] == [None] * 3
    wait = limits.take_from_rate(producer)
    assert wait == pytest.approx(0.5, abs=0.01)
    watch.move(0.49)
    assert limits.take_from_rate(producer) is not None
    watch.move(0.02)
    assert limits.take_from_rate(producer) is None
    watch.move(3600)
    assert [limits.take_from_rate(producer) is None for _ in range(4)] == [True, True, True, False]


def test_a_refused_publish_uses_no_quota(watch: Watch) -> None:
    producer = ProducerFactory.create(rate_per_second=1, rate_burst=1)
    limits.take_from_rate(producer)
    before = ProducerRate.objects.get().arrival_at
    assert all(limits.take_from_rate(producer) for _ in range(20))
    assert ProducerRate.objects.get().arrival_at == before


def test_a_batch_counts_each_message_and_may_pass_a_full_bucket_once(watch: Watch) -> None:
    producer = ProducerFactory.create(rate_per_second=10, rate_burst=5)
    assert limits.take_from_rate(producer, 3) is None
    assert limits.take_from_rate(producer, 3) == pytest.approx(0.1, abs=0.01)
    watch.move(0.3)
    assert limits.take_from_rate(producer, 100) is None
    assert limits.take_from_rate(producer) == pytest.approx(9.6, abs=0.01)


def test_without_a_limit_nothing_is_written(watch: Watch) -> None:
    assert limits.take_from_rate(None) is None
    assert limits.take_from_rate(ProducerFactory.create()) is None
    assert limits.take_from_rate(ProducerFactory.create(rate_per_second=1), 0) is None
    assert not ProducerRate.objects.exists()


def test_producers_do_not_share_their_rates(watch: Watch) -> None:
    first = ProducerFactory.create(rate_per_second=1, rate_burst=1)
    second = ProducerFactory.create(rate_per_second=1, rate_burst=1)
    assert limits.take_from_rate(first) is None
    assert limits.take_from_rate(second) is None
    assert limits.take_from_rate(first) is not None


@pytest.mark.django_db(transaction=True)
def test_many_at_once_get_exactly_the_burst(watch: Watch) -> None:
    producer = ProducerFactory.create(rate_per_second=0.001, rate_burst=7)
    passed: list[bool] = []

    def ask() -> None:
        for _ in range(5):
            passed.append(limits.take_from_rate(producer) is None)

    for thread in [in_thread(ask) for _ in range(8)]:
        thread.join()
    assert (len(passed), sum(passed)) == (40, 7)
