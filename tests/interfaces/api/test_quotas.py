"""Quotas and the disk reserve: which requests are refused, which go on, and the responses."""

import errno
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from channels_app import conf
from channels_app.api.views import publish
from channels_app.database import clock
from channels_app.database.dialects.mysql import MySQL
from channels_app.ingest import limits
from channels_app.models import Channel, ConfigVersion, Message, Producer, QuotaUsage
from delivery.maintenance import quota_usage as counting
from delivery.models import Delivery
from tests.support import errors
from tests.support.api import Answer, Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    TeamFactory,
)
from tests.support.limits import a_short_disk

pytestmark = pytest.mark.django_db
URL = "channels/orders/messages"


@pytest.fixture
def channel() -> Channel:
    channel = ChannelFactory.create(slug="orders", max_waiting_messages=3)
    ConsumerFactory.create(channel=channel)
    return channel


@pytest.fixture
def producer(channel: Channel) -> Api:
    return Api(ApiKeyFactory.create())


def counted() -> None:
    """Run the count of the maintenance process and make this process read it."""
    for _ in counting.count(clock.now()):
        pass
    limits.forget()


def refused(answer: Answer, code: str, status: int = 429) -> None:
    assert (answer.status, answer.json["code"]) == (status, code)
    assert int(answer.response["Retry-After"]) > 0


@pytest.mark.trap("an unlimited backlog")
def test_a_full_channel_refuses_messages_until_fewer_wait(
    producer: Api, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert producer.post(URL, b"{}").status == 202

    with monkeypatch.context() as patch:
        patch.setattr(publish, "read_body", None)  # no large body is read
        answer = producer.post(URL, b"x" * 100_000)

    refused(answer, "channel_over_quota")
    assert "3 messages wait in the channel orders" in answer.json["detail"]
    assert Message.objects.count() == 3
    counted()
    refused(producer.post(URL, b"{}"), "channel_over_quota")
    Message.objects.update(state="dispatched")
    counted()
    assert producer.post(URL, b"{}").status == 202


def test_bytes_have_a_limit_of_their_own(producer: Api, channel: Channel) -> None:
    Channel.objects.update(max_waiting_messages=None, max_waiting_bytes=1000)
    assert producer.post(URL, b"x" * 900).status == 202

    refused(producer.post(URL, b"x" * 101), "channel_over_quota")
    assert producer.post(URL, b"x" * 100).status == 202


def test_a_batch_is_stored_whole_or_not_at_all(producer: Api, channel: Channel) -> None:
    refused(producer.post(f"{URL}/batch", [{"body": "x"}] * 4), "channel_over_quota")
    assert Message.objects.count() == 0
    answer = producer.post(f"{URL}/batch", [{"body": "x"}] * 3)
    assert (answer.status, answer.json["accepted"]) == (207, 3)


def test_refused_messages_use_no_quota(producer: Api, channel: Channel) -> None:
    for _ in range(10):
        answer = producer.post(URL, b"{}", Idempotency_Key="same")
        assert answer.status in {200, 202}
    assert producer.post(URL, b"{}").status == 202
    assert producer.post(URL, b"{}").status == 202
    refused(producer.post(URL, b"{}"), "channel_over_quota")


def test_a_team_has_a_limit_over_all_channels(channel: Channel) -> None:
    ChannelFactory.create(slug="other")
    team = TeamFactory.create(max_waiting_messages=2)
    key = ApiKeyFactory.create()
    Producer.objects.update(team=team)
    mine = Api(key)
    assert mine.post(URL, b"{}").status == 202
    assert mine.post("channels/other/messages", b"{}").status == 202
    for _ in range(2):
        refused(mine.post(URL, b"{}"), "team_over_quota")
        counted()
    # Messages of other producers do not count for that team.
    assert Api(ApiKeyFactory.create()).post(URL, b"{}").status == 202


def test_installation_quotas_apply_without_own_ones(
    producer: Api, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    Channel.objects.update(max_waiting_messages=None)
    assert producer.post(URL, b"{}").status == 202
    limited = replace(conf.conf(), channel_waiting_messages=1, channel_waiting_bytes=0)
    monkeypatch.setattr("channels_app.registry.snapshot.conf", lambda: limited)
    ConfigVersion.bump()
    refused(producer.post(URL, b"{}"), "channel_over_quota")


@pytest.mark.trap("a full disk")
def test_low_disk_space_refuses_only_publishing(
    producer: Api, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = DeliveryFactory.create(consumer=channel.consumers.get(), dead=True)
    operator = Api(ApiKeyFactory.create(admin=True))
    with a_short_disk(monkeypatch):
        refused(producer.post(URL, b"{}"), "storage_full", 507)
        refused(producer.post(f"{URL}/batch", [{"body": "x"}]), "storage_full", 507)
        assert operator.post(f"deliveries/{dead}/replay", {}).status == 202
        assert operator.patch("channels/orders", {"description": "full"}).status == 200
    assert producer.post(URL, b"{}").status == 202


@pytest.mark.trap("ready, but cannot store")
def test_low_disk_space_fails_readiness(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "/readyz?exclude=pumps&exclude=oldest_due"
    assert client.get(query).status_code == 200
    with a_short_disk(monkeypatch):
        answer = client.get(query)
        assert answer.status_code == 503
        assert not answer.json()["checks"]["disk"]["ok"]
    assert client.get(query).status_code == 200


def test_a_full_database_server_is_reported_as_507(
    producer: Api, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors.of_mysql(monkeypatch)

    def fail(execute: Any, sql: str, *more: Any) -> Any:
        if sql.startswith("INSERT") or "; INSERT" in sql:
            raise OperationalError(1114, "The table 'channels_app_message' is full")
        return execute(sql, *more)

    with connection.execute_wrapper(fail):
        refused(producer.post(URL, b"{}"), "storage_full", 507)
    assert producer.post(URL, b"{}").status == 202


def test_only_a_full_disk_is_reported_as_507() -> None:
    for code, text, is_full in (
        (1021, "Disk full (/tmp); waiting for someone to free some space", True),
        (1030, 'Got error 28 "No space left on device" from storage engine InnoDB', True),
        (3, f"Error writing file '/tmp/x' (Errcode: {errno.ENOSPC} \"No space left\")", True),
        (1030, "Got error 122 from storage engine", False),
        (1290, "running with the --read-only option", False),
    ):
        assert MySQL().is_full(OperationalError(code, text)) is is_full, text


def test_a_channel_shows_its_limits(channel: Channel) -> None:
    operator = Api(ApiKeyFactory.create(admin=True))
    shown = operator.get("channels/orders").json
    assert shown["max_waiting_messages"] == 3
    assert shown["effective"]["max_waiting_messages"] == 3
    assert shown["effective"]["max_waiting_bytes"] == conf.conf().channel_quota.bytes
    assert operator.patch("channels/orders", {"max_waiting_messages": 0}).status == 422
    changed = operator.patch("channels/orders", {"max_waiting_messages": None}).json
    assert changed["effective"]["max_waiting_messages"] == conf.conf().channel_quota.messages


def test_the_count_is_of_messages_and_not_of_deliveries(channel: Channel) -> None:
    others = ConsumerFactory.create_batch(2, channel=channel)
    first = DeliveryFactory.create(consumer=others[0])
    DeliveryFactory.create(consumer=others[1], message=first.message, in_flight=True)
    DeliveryFactory.create(consumer=channel.consumers.first(), message=first.message, dead=True)
    DeliveryFactory.create(consumer=others[1], delivered=True)
    DeliveryFactory.create(consumer=others[1], retrying=True)
    counted()
    row = QuotaUsage.objects.get(scope="channel", owner_id=channel.pk)
    size = first.message.body_bytes
    assert (row.messages, row.bytes) == (2, 2 * size)
    Delivery.objects.update(state="delivered", due_at=None)
    counted()
    row.refresh_from_db()
    assert (row.messages, row.bytes) == (0, 0)
