"""Threads of one process share a query for configuration, and none of them gets stale data."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from channels_app.change_marker import change_marker
from channels_app.database import clock as clock_module
from channels_app.database.clock import DatabaseClock
from channels_app.models import ConfigVersion
from channels_app.registry import cache as config_cache_module
from channels_app.registry.cache import ConfigCache, config_cache
from delivery.processes import registration
from delivery.processes.wakeups import WakeupSender
from tests.support.factories import ConsumerFactory
from tests.support.waiting import until

PATIENCE_S = 120.0


class Slow:
    """A database query that blocks until it is released and counts its calls."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[None] = []
        self.go = threading.Event()
        self._begun = threading.Event()

    @property
    def asked(self) -> int:
        return len(self.calls)

    def __call__(self, *_: Any) -> Any:
        self.calls.append(None)
        self._begun.set()
        assert self.go.wait(PATIENCE_S)
        return self.answer

    def asked_by(self, work: Callable[[], object]) -> threading.Thread:
        """Start a thread that runs ``work`` and is blocked in the query."""

        def run() -> None:
            work()
            connection.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert self._begun.wait(PATIENCE_S)
        return thread


class Ticks:
    """A module ``time`` whose clock stands still, except that no two readings are equal."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.readings: list[None] = []

    def monotonic(self) -> float:
        self.readings.append(None)
        return self.now + len(self.readings) * 1e-9

    def sleep(self, seconds: float) -> None:
        """Do not sleep."""


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch, ticks: Ticks) -> Slow:
    """The version numbers of the configuration, slow to arrive."""
    slow = Slow(1)
    monkeypatch.setattr(config_cache_module, "time", ticks)
    monkeypatch.setattr(config_cache_module, "CHECK_S", 0.4)
    monkeypatch.setattr(ConfigVersion, "current", slow)
    return slow


def known(numbers: Slow, *, age_s: float) -> ConfigCache:
    """Return a cache that was up to date ``age_s`` seconds ago, at version 1."""
    config_cache = ConfigCache()
    numbers.go.set()
    assert config_cache.refresh() == 1
    numbers.go.clear()
    numbers._begun.clear()
    numbers.calls.clear()
    numbers.answer = 2
    config_cache._checked -= age_s
    return config_cache


def test_recent_configuration_is_not_reloaded(numbers: Slow) -> None:
    assert known(numbers, age_s=0.2).refresh() == 1
    assert numbers.asked == 0


def test_only_one_thread_checks_for_changes(numbers: Slow) -> None:
    config_cache = known(numbers, age_s=0.5)
    select_payloads = numbers.asked_by(config_cache.refresh)

    assert [config_cache.refresh() for _ in range(5)] == [1] * 5
    assert numbers.asked == 1
    numbers.go.set()
    select_payloads.join(PATIENCE_S)
    assert config_cache.refresh() == 2


@pytest.mark.django_db
def test_consumer_configuration_is_built_once_until_it_changes() -> None:
    consumer = ConsumerFactory.create(client_id="one")
    known = config_cache.consumers()
    assert config_cache.consumers() is known
    assert config_cache.consumer(consumer.channel.slug, "one") is known[consumer.id]
    assert config_cache.consumer("another", "one") is None

    other = ConsumerFactory.create(client_id="two")
    assert config_cache.consumers().keys() == {consumer.id, other.id}
    assert known.keys() == {consumer.id}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> ConfigCache:
    """The cache of a process on another host, which is not notified of changes."""
    monkeypatch.setattr(config_cache_module, "CHECK_S", 60.0)
    monkeypatch.setattr(change_marker, "mark", lambda: (0, 0))
    other = ConfigCache()
    assert not list(other.channels())
    return other


@pytest.mark.trap("a 404 for a new object")
@pytest.mark.django_db
def test_objects_created_on_another_host_are_found_at_once(elsewhere: ConfigCache) -> None:
    consumer = ConsumerFactory.create(client_id="one")
    channel = consumer.channel.slug
    assert elsewhere.channel(channel) is not None
    other = ConsumerFactory.create(client_id="two", channel=consumer.channel)
    assert elsewhere.consumer(channel, "two") is not None
    third = ConsumerFactory.create(client_id="three", channel=consumer.channel)
    assert third.id in elsewhere.consumers({consumer.id, other.id, third.id})


@pytest.mark.trap("a 404 for a new object")
@pytest.mark.django_db
def test_unknown_names_query_the_database_at_a_bounded_rate(
    elsewhere: ConfigCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    current = ConfigVersion.current

    def counted() -> int:
        asked.append(1)
        return current()

    monkeypatch.setattr(ConfigVersion, "current", counted)
    began = time.monotonic()
    for number in range(20):
        assert elsewhere.channel(f"made-up-{number}") is None
    assert time.monotonic() - began >= 19 * config_cache_module.RETRY_INTERVAL_S
    assert len(asked) == 20


@pytest.mark.trap("a 404 for a new object")
def test_concurrent_lookups_of_unknown_names_share_a_query(numbers: Slow, ticks: Ticks) -> None:
    config_cache = known(numbers, age_s=0.0)
    select_payloads = [numbers.asked_by(config_cache._reload)]
    before = len(ticks.readings)
    for _ in range(5):
        select_payloads.append(threading.Thread(target=config_cache._reload, daemon=True))
        select_payloads[-1].start()
    until(lambda: len(ticks.readings) == before + 5, "all have come during the first query")
    numbers.go.set()
    for thread in select_payloads:
        thread.join(PATIENCE_S)
    assert numbers.asked == 2


@pytest.mark.trap("a revoked key still works in other processes")
def test_configuration_is_at_most_a_second_old(numbers: Slow) -> None:
    config_cache = known(numbers, age_s=0.9)
    first = numbers.asked_by(config_cache.refresh)
    others = [threading.Thread(target=config_cache.refresh, daemon=True) for _ in range(3)]
    for thread in others:
        thread.start()
    until(lambda: numbers.asked == 4, "each thread queries")
    numbers.go.set()
    for thread in (first, *others):
        thread.join(PATIENCE_S)
    assert config_cache.refresh() == 2


def test_a_change_marker_makes_every_process_reload(
    numbers: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_cache = known(numbers, age_s=0.5)
    select_payloads = numbers.asked_by(config_cache.refresh)
    monkeypatch.setattr(change_marker, "mark", lambda: (99, 99))
    numbers.go.set()

    assert config_cache.refresh() == 2
    assert numbers.asked == 2
    select_payloads.join(PATIENCE_S)


def test_while_one_thread_reads_the_database_clock_others_extrapolate(
    monkeypatch: pytest.MonkeyPatch, ticks: Ticks
) -> None:
    slow = Slow(datetime(2026, 1, 1, tzinfo=UTC))
    slow.go.set()
    monkeypatch.setattr(clock_module, "_ask", slow)
    monkeypatch.setattr(clock_module, "time", ticks)
    clock = DatabaseClock()
    clock.now()
    slow.go.clear()
    slow._begun.clear()
    ticks.now += clock_module.RESYNC_S + 1
    select_payloads = slow.asked_by(clock.now)

    assert clock.now().year == 2026
    assert slow.asked == 2
    slow.go.set()
    select_payloads.join(PATIENCE_S)


def test_while_one_thread_reads_the_pumps_others_wake_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow([])
    monkeypatch.setattr(registration, "listening", slow)
    wakeup_sender = WakeupSender()
    reading = slow.asked_by(lambda: wakeup_sender.accepted(1, 4, [7]))

    wakeup_sender.accepted(1, 4, [7])
    wakeup_sender._read_at -= 10
    wakeup_sender.accepted(1, 4, [7])
    assert slow.asked == 1
    slow.go.set()
    reading.join(PATIENCE_S)
