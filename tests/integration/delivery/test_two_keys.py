"""Two hosts, one without a key: it leaves what it cannot decrypt, and nothing becomes dead."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import pytest

from channels_app.core.encryption import Keyring, generate_key
from channels_app.database import clock
from channels_app.models import Channel, MessageBody
from channels_app.registry import data_encryption
from delivery import metrics
from delivery.core.lifecycle import FREE_ATTEMPTS
from delivery.maintenance import recurring
from delivery.models import Attempt, Delivery, PumpSlot
from delivery.processes import registration
from tests.support.calling import Api
from tests.support.counts import assert_counters_are_true
from tests.support.factories import ScheduleFactory
from tests.support.keys import host
from tests.support.pulling import Worker, waiting
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_rounds,
    pump_until,
    pumping,
)
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.django_db, pytest.mark.mysql]
OLD, NEW, LOST = generate_key(), generate_key(), generate_key()
MESSAGES = [b"%d" % number for number in range(5)]


def untouched(count: int) -> None:
    """Check that all deliveries wait without a single attempt."""
    rows = Delivery.objects.filter(state="queued", failure_count=0, interruption_count=0)
    assert rows.filter(attempt_count=0).count() == Delivery.objects.count() == count
    assert not Attempt.objects.exists()
    assert_counters_are_true()


def delivered_at_first(count: int) -> None:
    """Check that all deliveries arrived with their first attempt."""
    rows = Delivery.objects.filter(state="delivered", attempt_count=1, failure_count=0)
    assert rows.filter(interruption_count=0).count() == Delivery.objects.count() == count
    assert Attempt.objects.count() == count
    assert_counters_are_true()


def id_of(key: str) -> str:
    """Return the key's fingerprint."""
    return Keyring.from_texts([key]).primary_id


def let_due() -> None:
    """Make deliveries that wait for a key due now."""
    Delivery.objects.filter(state="queued").update(due_at=clock.now() - timedelta(seconds=1))


def encrypted_with(keys: Sequence[str], receiver: Receiver, consumers: int) -> Channel:
    """Create messages and consumers, all encrypted on a host with these keys."""
    with host(*keys):
        channel = make_channel()
        for _ in range(consumers):
            make_consumer(channel, receiver.url())
        publish(channel, *MESSAGES)
    return channel


@contextmanager
def former_key_dropped_early(receiver: Receiver) -> Iterator[Channel]:
    """Bodies encrypted with OLD, secrets with NEW: a host with NEW alone can send nothing."""
    channel = encrypted_with([OLD], receiver, 0)
    with host(NEW, OLD) as both:
        data_encryption.activate(both.primary_id)
        for _ in range(2):
            make_consumer(channel, receiver.url())
        yield channel


@pytest.mark.trap("an encryption key that only one host has")
def test_a_pump_without_the_key_of_a_body_releases_it_to_another(
    receiver: Receiver,
) -> None:
    with former_key_dropped_early(receiver):
        with host(NEW), pumping() as lacking:
            pump_until(lacking, lambda: PumpSlot.objects.exclude(missing_key_ids="").exists())
            with host(NEW, OLD), pumping() as knowing:
                pump_rounds(knowing, 1)  # so that the other one learns of it
                with host(NEW):
                    let_due()
                    pump_rounds(lacking, 2)
                    assert not lacking.assignment.queues
                    untouched(2 * len(MESSAGES))
                    assert lacking.assignment.miss(id_of(OLD)) == registration.ELSEWHERE_S
                with host(NEW, OLD):
                    pump_until(knowing, all_finished)
        delivered_at_first(2 * len(MESSAGES))
    assert len(receiver.requests()) == 2 * len(MESSAGES)


@pytest.mark.trap("an encryption key that only one host has")
def test_a_missing_key_uses_up_no_attempts(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with former_key_dropped_early(receiver):
        before = metrics.UNOPENED._value.get()
        with host(NEW), pumping() as lacking:
            for _ in range(FREE_ATTEMPTS + 2):
                let_due()
                pump_rounds(lacking, 2)
            untouched(2 * len(MESSAGES))
            assert metrics.UNOPENED._value.get() > before
            assert sum("is missing here" in queue for queue in caplog.messages) == 1
            slot = PumpSlot.objects.get()
            assert slot.missing_key_ids
            assert {due for due in waits() if due < registration.NOWHERE_S / 2} == set()
        with host(NEW, OLD), pumping() as knowing:
            let_due()
            pump_until(knowing, all_finished)
    delivered_at_first(2 * len(MESSAGES))


def waits() -> list[float]:
    """Return the seconds until each waiting delivery is due."""
    rows = Delivery.objects.filter(state="queued").values_list("due_at", flat=True)
    return [(due_at - clock.now()).total_seconds() for due_at in rows if due_at]


@pytest.mark.trap("an encryption key that only one host has")
def test_a_pump_without_the_active_key_serves_no_consumers(receiver: Receiver) -> None:
    encrypted_with([NEW, OLD], receiver, 2)
    with host(OLD), pumping() as lacking:
        pump_rounds(lacking, 3)
        untouched(2 * len(MESSAGES))
        with host(NEW, OLD), pumping() as knowing:
            pump_rounds(knowing, 1)  # so that the other one learns of it
            with host(OLD):
                pump_rounds(lacking, 2)
                assert not lacking.assignment.queues
            with host(NEW, OLD):
                pump_until(knowing, all_finished)
    delivered_at_first(2 * len(MESSAGES))


def test_a_web_process_without_the_key_releases_received_messages() -> None:
    with host(OLD):
        consumer = waiting(*MESSAGES[:3])
    with host(NEW, OLD) as both:
        data_encryption.activate(both.primary_id)
    with host(NEW):
        assert Worker(consumer).receive() == []
        untouched(3)
        assert {wait > registration.NOWHERE_S / 2 for wait in waits()} == {True}
    with host(NEW, OLD):
        let_due()
        messages = Worker(consumer).receive(max=3)
        assert sorted(one["body"] for one in messages) == ["0", "1", "2"]
        assert {one["attempt"] for one in messages} == {1}


def test_a_web_process_without_the_active_key_accepts_and_returns_nothing() -> None:
    with host(NEW):
        consumer = waiting(b"there")
    with host(OLD):
        publisher = Api(scopes=["publish"])
        path = f"/channels/{consumer.channel.slug}/messages"
        refused = publisher.post(path, {"n": 1})
        assert (refused.status_code, refused.json()["code"]) == (503, "key_missing")
        assert int(refused["Retry-After"])
        worker = Worker(consumer)
        refused = worker.api.post(f"{worker.path}/receive", {})
        assert (refused.status_code, refused.json()["code"]) == (503, "key_missing")
        assert MessageBody.objects.count() == 1
        untouched(1)
    with host(NEW):
        assert publisher.post(path, {"n": 1}).status_code == 202


def test_a_schedule_is_fired_by_a_process_that_can_decrypt_it() -> None:
    with host(OLD):
        lacked = ScheduleFactory.create(body=b"tick", next_at=clock.now() - timedelta(seconds=1))
    with host(NEW, OLD) as both:
        data_encryption.activate(both.primary_id)
        registration.acquire("other", PumpSlot.Kind.MAINTENANCE, 1)
        whole = ScheduleFactory.create(body=b"tock", next_at=clock.now() - timedelta(seconds=1))
    with host(NEW):
        assert recurring.fire_due() == 1
    lacked.refresh_from_db()
    whole.refresh_from_db()
    assert (lacked.fired_count, lacked.skipped_count, lacked.recent) == (0, 0, [])
    assert whole.fired_count == 1
    with host(NEW, OLD):
        assert recurring.fire_due()
    lacked.refresh_from_db()
    assert lacked.fired_count == 1


def test_a_web_process_reports_its_keys_and_missing_ones() -> None:
    with host(OLD):
        waiting(b"there")
    with host(NEW) as wrong:
        change_marker = registration.ChangeMarker()
        change_marker.beat()
        (holder,) = registration.holders()
        assert holder.name.startswith("web")
        assert holder.keys == wrong.ids
        assert holder.lacks(data_encryption.encrypting_key_id())
        assert holder.missing == {data_encryption.encrypting_key_id()}
        PumpSlot.objects.all().delete()  # it stopped, and its registration was deleted
        change_marker.beat()
        (holder,) = registration.holders()
        assert holder.missing == {data_encryption.encrypting_key_id()}
