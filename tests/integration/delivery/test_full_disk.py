"""SQLite on a disk that is almost full: what is deleted makes room, with little room to do it."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from django.db import connection

from channels_app import conf
from channels_app.core.errors import StorageFull
from channels_app.database import clock, raw, slices
from channels_app.ingest import storage
from channels_app.models import Channel, Message, MessageBody
from delivery.maintenance import channel_erasure, retention
from delivery.models import Attempt
from tests.crash.faults.disk import Disk
from tests.support.factories import (
    AttemptFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    MessageFactory,
)

pytestmark = pytest.mark.django_db(transaction=True)
MIB = 1024 * 1024
FREE = 4 * MIB
"""Less than the log would take if it were written to the database only every 1,000 pages."""
BODIES = 16
BODY = bytes(900_000)


def erase(channel: Channel) -> Iterable[int]:
    """Delete everything of the channel, as `manage.py delete_channel` does."""
    return channel_erasure.rows(channel)


def prune(channel: Channel) -> Iterable[int]:
    """Delete what is past its retention."""
    return retention.prune(clock.now() + timedelta(days=1000), slot=0)


deletions = pytest.mark.parametrize("delete", [erase, prune])
Delete = Callable[[Channel], Iterable[int]]


def fill(channel: Channel, count: int, body: bytes) -> None:
    for _ in range(count):
        MessageFactory.create(channel=channel, body=body, dispatched=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of its own, with a copy of the test's database."""
    if connection.vendor != "sqlite":
        pytest.skip("other databases have a server and its own disk")
    disk = Disk(tmp_path)
    if not disk.is_small:
        pytest.skip("needs the right to mount a small file system")
    usual, file = connection.settings_dict["NAME"], str(tmp_path / "broker.sqlite3")
    try:
        raw.execute("VACUUM INTO %s", [file])
        connection.close()
        connection.settings_dict["NAME"] = file
        storage.forget()
        yield disk
    finally:
        connection.close()
        connection.settings_dict["NAME"] = usual
        storage.forget()
        disk.close()


@pytest.mark.trap("a disk that stays full")
@deletions
def test_a_full_disk_is_emptied_and_publishing_continues(
    small_disk: Disk, delete: Delete, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = ChannelFactory.create()
    fill(channel, BODIES, BODY)
    raw.read("PRAGMA wal_checkpoint(TRUNCATE)")
    reserved = replace(conf.conf(), disk_reserve_bytes=FREE + MIB)
    monkeypatch.setattr(storage, "conf", lambda: reserved)
    with small_disk.nearly_full(FREE):
        with pytest.raises(StorageFull):
            storage.disks.check()
        for _ in delete(channel):
            pass
        assert not MessageBody.objects.exists()
        storage.forget()
        storage.disks.check()
        assert shutil.disk_usage(small_disk.folder).free < reserved.disk_reserve_bytes


@pytest.mark.trap("a disk that stays full")
@pytest.mark.parametrize("large", ["bodies", "responses"])
@deletions
def test_a_transaction_deletes_a_limited_number_of_bytes(
    delete: Delete, large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MAX_BYTES", 25_000)
    consumer = ConsumerFactory.create()
    for _ in range(5):
        size = 10_000 if large == "bodies" else 10
        message = MessageFactory.create(channel=consumer.channel, body=bytes(size), dispatched=True)
        row = DeliveryFactory.create(message=message, consumer=consumer, delivered=True)
        AttemptFactory.create(delivery=row, answer_excerpt=bytes(10_010 - size))
    rows = MessageBody.objects if large == "bodies" else Attempt.objects
    left = [5]
    for _ in delete(consumer.channel):
        left.append(rows.count())
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) == 2
    assert not Message.objects.exists()


@pytest.mark.trap("a disk that stays full")
def test_space_within_the_database_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = ChannelFactory.create()
    fill(channel, 5, BODY)
    MessageBody.objects.all().delete()
    if connection.vendor != "sqlite":
        assert raw.dialect.reusable_bytes() >= 0  # the server purges deleted rows later
        return
    usage = shutil.disk_usage("/")._replace(free=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    storage.forget()
    (room,) = storage.disks.rooms()
    assert room.free > 5 * len(BODY)
