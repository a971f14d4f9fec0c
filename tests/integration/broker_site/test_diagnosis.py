"""Diagnosis finds each fault of a running installation and nothing in a healthy one."""

import shutil
from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.utils import timezone

from broker_site.observability import diagnosis
from broker_site.observability.diagnosis import Finding
from channels_app.conf import conf, keyring
from channels_app.core.encryption import Keyring, generate_key
from channels_app.database import clock
from channels_app.models import Consumer, ConsumerSecret, EventType, Membership
from channels_app.registry import data_encryption
from delivery.models import ConsumerHealth, Counter, PumpSlot
from tests.support.factories import (
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    ScheduleFactory,
    TeamFactory,
)
from tests.support.keys import host

pytestmark = pytest.mark.django_db

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _pump() -> None:
    now = timezone.now()
    place = {"cluster": "c", "ordinal": 0, "generation": 1, "host": "h", "pid": 1}
    keys = ",".join(keyring().ids)
    PumpSlot.objects.create(
        **place, key_ids=keys, started_at=now, heartbeat_at=now + timedelta(hours=1)
    )


def found(look: Callable[[], Iterable[Finding]]) -> list[tuple[str, str]]:
    """Return level and id of each finding; every finding must have a remedy."""
    findings = list(look())
    assert all(finding.hint for finding in findings)
    return [(finding.level, finding.id) for finding in findings]


def test_a_healthy_installation_has_no_findings() -> None:
    DeliveryFactory.create(delivered=True)

    assert diagnosis.find() == []


def test_missing_migrations_are_the_only_finding() -> None:
    PumpSlot.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'delivery'")

    assert found(diagnosis.find) == [("error", "migrations")]


def test_a_missing_pump_is_a_finding() -> None:
    PumpSlot.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1))

    assert found(diagnosis.find) == [("error", "pumps")]


def test_a_late_delivery_is_a_finding() -> None:
    DeliveryFactory.create(due_at=timezone.now() - timedelta(minutes=5))

    assert found(diagnosis.find) == [("warning", "oldest_due")]


def test_a_schedule_that_is_not_fired_is_a_finding() -> None:
    now = timezone.now()
    ScheduleFactory.create(next_at=now - timedelta(seconds=30))
    assert found(diagnosis.find) == []
    ScheduleFactory.create(next_at=now - timedelta(minutes=2))
    assert found(diagnosis.find) == [("error", "schedules_overdue")]


def test_dead_letters_and_wrong_counters_are_findings() -> None:
    delivery = DeliveryFactory.create(dead=True)
    Counter.add({(delivery.consumer_id, "delivered"): 1}, 0)

    assert found(diagnosis.find) == [("warning", "reconciliation_gap"), ("info", "dead_letters")]


def test_consumers_without_deliveries_are_findings() -> None:
    ConsumerFactory.create(disabled=True)
    ConsumerHealth.objects.create(consumer=ConsumerFactory.create(), circuit="open")
    ConsumerHealth.objects.create(consumer=ConsumerFactory.create(retired=True), circuit="open")

    findings = diagnosis.find()

    assert [finding.id for finding in findings] == ["consumers_disabled", "circuits_open"]
    assert findings[1].sentence.startswith("1 consumers")


def test_a_schema_that_is_now_refused_is_a_finding() -> None:
    channel = ChannelFactory.create(slug="orders")
    fine = {"pattern": "^a+$"}
    EventType.objects.create(channel=channel, name="fine", schema=fine)
    EventType.objects.create(channel=channel, name="none")
    assert found(diagnosis.event_types) == []
    EventType.objects.create(channel=channel, name="paid", schema={"pattern": "(?=a)a"})

    assert found(diagnosis.event_types) == [("warning", "event_type_schemas")]
    assert "orders/paid" in next(iter(diagnosis.event_types())).sentence


def test_unreachable_mail_addresses_are_findings(settings: Any) -> None:
    settings.CAN_MAIL = False
    assert found(diagnosis.mail) == []
    user = User.objects.create_user("mia")
    Membership.objects.create(team=TeamFactory.create(), user=user, role="owner")

    assert found(diagnosis.mail) == [("info", "no_mail")]
    settings.CAN_MAIL = True
    assert found(diagnosis.mail) == []


def test_an_unfinished_key_rotation_is_a_finding() -> None:
    ConsumerFactory.create()
    assert found(diagnosis.encryption) == []

    ConsumerSecret.objects.update(key_id="0badcafe")

    assert found(diagnosis.encryption) == [("warning", "key_rotation")]


@pytest.mark.trap("an encryption key that only one host has")
def test_a_process_that_lacks_a_key_is_named() -> None:
    PumpSlot.objects.update(missing_key_ids="0badcafe")
    assert found(diagnosis.encryption) == [("error", "process_keys")]
    (finding,) = diagnosis.encryption()
    assert "pump 0 on h (1) lacks encryption keys (0badcafe)" in finding.sentence

    PumpSlot.objects.update(missing_key_ids="", key_ids="0badcafe")
    (finding,) = diagnosis.encryption()
    assert f"({data_encryption.encrypting_key_id()})" in finding.sentence


def test_an_inactive_and_an_unusable_key_are_findings() -> None:
    old, new = generate_key(), generate_key()
    with host(old):
        PumpSlot.objects.all().delete()
        ConsumerFactory.create()
    with host(new, old):
        assert found(diagnosis.encryption) == [("info", "key_not_rotated")]
    with host(new):
        assert found(diagnosis.encryption) == [("error", "encryption_key")]


def test_a_rotation_that_skipped_consumer_headers_is_a_finding() -> None:
    consumer = ConsumerFactory.create()
    former = Keyring.from_texts([generate_key()])
    Consumer.objects.filter(pk=consumer.pk).update(headers_sealed=former.encrypt(b"{}", b"x"))

    assert found(diagnosis.encryption) == [("warning", "key_rotation")]

    Consumer.objects.filter(pk=consumer.pk).update(headers_sealed=b"nonsense")
    assert found(diagnosis.encryption) == []


@pytest.mark.parametrize(
    ("free", "level"), [(2 * 1024**3, None), (500 * 1024**2, "warning"), (1024, "error")]
)
def test_low_disk_space_is_a_finding(
    free: int, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free * 2, free, free))
    assert set(found(diagnosis.disk)) == ({(level, "disk")} if level else set())


def test_an_unwritable_data_folder_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert found(diagnosis.data_dir) == []

    monkeypatch.setattr(settings, "DATA_DIR", tmp_path / "gone")

    assert found(diagnosis.data_dir) == [("error", "data_dir")]


def test_an_unavailable_database_is_a_finding() -> None:
    def gone(*args: Any) -> Any:
        raise OperationalError("no route")

    with connection.execute_wrapper(gone):
        assert found(diagnosis.find) == [("error", "database")]


@pytest.mark.mariadb
def test_a_server_without_durable_commits_is_a_finding() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@innodb_flush_log_at_trx_commit")
        (before,) = cursor.fetchone()
        for value, told in ((1, []), (2, [("warning", "durability")])):
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = %s", [value])
            assert found(diagnosis.durability) == told
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = %s", [before])


@pytest.mark.mariadb
def test_a_too_small_max_allowed_packet_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (most,) = cursor.fetchone()
    assert found(diagnosis.packets) == []

    large = replace(conf(), max_body_bytes=most // 2)
    monkeypatch.setattr(diagnosis, "conf", lambda: large)
    assert found(diagnosis.packets) == [("warning", "max_allowed_packet")]
    (finding,) = diagnosis.packets()
    assert f"{most // 1024**2 + 1}M" in finding.hint


@pytest.mark.mariadb
def test_different_clocks_are_a_finding() -> None:
    assert found(diagnosis.clocks) == []

    with connection.cursor() as cursor:
        # Fixes the UTC_TIMESTAMP of this session.
        cursor.execute("SET timestamp = 1000000000")
        assert found(diagnosis.clocks) == [("warning", "clock")]
        cursor.execute("SET timestamp = DEFAULT")


def test_clock_comparison_considers_the_measurement_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.offset()
    assert abs(now.seconds) <= now.error_s + 0.05

    for seconds, error_s, least_s in ((0.3, 0.1, 0.2), (-0.3, 0.1, 0.2), (0.1, 0.2, 0.0)):
        assert clock.Offset(seconds, error_s).least_s == pytest.approx(least_s)


@pytest.mark.mariadb
@pytest.mark.seed("S4-31")
@pytest.mark.parametrize(
    ("ahead_s", "expected"), [(0.01, []), (0.3, ["info"]), (-5.0, ["warning"])]
)
def test_the_severity_of_a_clock_offset_depends_on_its_size(
    ahead_s: float, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "offset", lambda: clock.Offset(ahead_s, 0.001))
    assert [level for level, _ in found(diagnosis.clocks)] == expected
