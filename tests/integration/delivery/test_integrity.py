"""A body that was changed in the database is not sent by push, pull or replay."""

import html
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client import REGISTRY

from channels_app import conf as conf_module
from channels_app.access.principal import Principal
from channels_app.core.encryption import Changed
from channels_app.database import clock
from channels_app.models import ConsumerSecret, Message, MessageBody
from channels_app.registry import data_encryption
from channels_app.registry.cache import config_cache
from channels_app.registry.snapshot import load_signer
from delivery import replay
from delivery.models import Attempt, Delivery
from delivery.replay import restore
from delivery.transport import payloads
from tests.support import console, pumping
from tests.support.calling import Api, problem
from tests.support.counts import assert_counters_are_true
from tests.support.pulling import Worker, waiting
from tests.support.pumping import (
    SECRET,
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
)
from tests.support.receiver import Receiver
from tests.support.restoring import bring as bring_back
from tests.support.restoring import take_away

pytestmark = pytest.mark.django_db(transaction=True)

ACCEPTED, EVIL = b'{"amount": 100}', b'{"amount": 900}'


def one_letter(row: MessageBody) -> None:
    row.data = bytes(row.data).replace(ACCEPTED, EVIL)


def without_protection(row: MessageBody) -> None:
    """Store the body as it was stored before digests existed."""
    row.data = b"\0" + EVIL


def without_an_envelope(row: MessageBody) -> None:
    row.data = EVIL


def from_another_row(row: MessageBody) -> None:
    row.data, row.key_id = data_encryption.encrypt_body(row.message_id + 1, EVIL, encrypt=False)


def sealed_elsewhere(row: MessageBody) -> None:
    row.data, row.key_id = data_encryption.encrypt_body(row.message_id + 1, EVIL, encrypt=True)


CHANGES = [
    (False, one_letter),
    (False, without_protection),
    (False, without_an_envelope),
    (False, from_another_row),
    (True, without_an_envelope),
    (True, without_protection),
    (True, sealed_elsewhere),
]


def tamper(change: Callable[[MessageBody], None]) -> None:
    for row in MessageBody.objects.all():
        before = bytes(row.data)
        change(row)
        assert bytes(row.data) != before
        row.save()


def was_refused(delivery: Delivery) -> None:
    ended = delivery.state, delivery.reason, delivery.outcome
    assert ended == ("dead", "integrity_error", "integrity_error")
    assert (delivery.failure_count, delivery.due_at) == (0, None)
    attempt = Attempt.objects.filter(delivery=delivery).latest("number")
    assert attempt.outcome == "integrity_error"
    assert "changed" in attempt.error


def refused_so_far() -> float:
    labels = {"outcome": "integrity_error"}
    return REGISTRY.get_sample_value("hookstation_attempts_total", labels) or 0.0


@pytest.mark.parametrize(("encrypt", "change"), CHANGES)
def test_a_changed_body_is_detected(encrypt: bool, change: Callable[[MessageBody], None]) -> None:
    (message_id,) = publish(make_channel(encrypt_bodies=encrypt), ACCEPTED)
    assert payloads.load([message_id])[message_id].body == ACCEPTED
    tamper(change)
    payload = payloads.load([message_id])[message_id]
    assert (payload.body, payload.outcome.value) == (None, "integrity_error")


@pytest.mark.trap("a changed row is sent with a valid signature")
def test_a_changed_body_is_not_sent(receiver: Receiver) -> None:
    channel = make_channel(encrypt_bodies=False)
    make_consumer(channel, receiver.url())
    publish(channel, ACCEPTED)
    tamper(one_letter)
    before = refused_so_far()
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)

    assert receiver.requests() == []
    was_refused(Delivery.objects.get())
    assert refused_so_far() == before + 1
    assert_counters_are_true()


@pytest.mark.trap("a changed row is sent with a valid signature")
def test_a_changed_body_is_not_returned_to_receivers() -> None:
    consumer = waiting(ACCEPTED, channel=make_channel(encrypt_bodies=False))
    tamper(one_letter)

    assert Worker(consumer).receive() == []
    was_refused(Delivery.objects.get())
    assert_counters_are_true()


@pytest.mark.trap("a changed row is sent with a valid signature")
def test_a_delivered_message_that_was_changed_is_not_replayed(receiver: Receiver) -> None:
    channel = make_channel(encrypt_bodies=False)
    make_consumer(channel, receiver.url())
    publish(channel, ACCEPTED)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        tamper(one_letter)
        row = Delivery.objects.get()
        assert row.state == "delivered"
        replay.replay_one(row.id, Principal("user:alice", "again"), now=clock.now())
        pump_until(pump, all_finished)

    assert [request.body for request in receiver.requests()] == [ACCEPTED]
    was_refused(Delivery.objects.get())


@pytest.mark.trap("a changed row is sent with a valid signature")
def test_a_body_that_comes_back_from_the_archive_brings_its_digest(receiver: Receiver) -> None:
    channel = make_channel(encrypt_bodies=False)
    consumer = make_consumer(channel, receiver.url())
    publish(channel, ACCEPTED, b"another")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        rows = take_away(list(Message.objects.values_list("id", flat=True)))
        for row in rows:
            row["body"] = row["body"].replace(ACCEPTED, EVIL)
        bring_back(consumer, rows)
        list(restore.run_each(clock.now(), 0))
        pump_until(pump, all_finished)

    sent = [request.body for request in receiver.requests()]
    assert sorted(sent) == sorted([ACCEPTED, b"another", b"another"])
    was_refused(Delivery.objects.get(state="dead"))


@pytest.mark.trap("a changed row is sent with a valid signature")
def test_console_and_api_say_that_a_body_was_changed() -> None:
    consumer = waiting(ACCEPTED, channel=make_channel(encrypt_bodies=False))
    tamper(one_letter)
    assert Worker(consumer).receive() == []
    row, api = Delivery.objects.get(), Api(scopes=["admin"])
    path = f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}/dead-letters"

    shown = api.get(f"/deliveries/{row}").json()
    assert (shown["outcome"], shown["attempts"][0]["outcome"]) == ("integrity_error",) * 2
    (found,) = api.get(f"{path}?outcome=integrity_error").json()["items"]
    assert found["id"] == str(row)
    answer = api.get(f"/messages/{row.message}/body")
    assert problem(answer) == (404, "integrity_error", "")
    page = console.look(console.operator(), console.page_url(row))
    assert "integrity error" in page
    assert EVIL.decode() not in html.unescape(page)


def test_bodies_without_digests_are_sent_unless_digests_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = make_channel(encrypt_bodies=False)
    (message_id,) = publish(channel, b"x")
    MessageBody.objects.update(data=b"\0" + ACCEPTED, key_id="")
    assert payloads.load([message_id])[message_id].body == ACCEPTED

    strict = replace(conf_module.conf(), require_body_digests=True)
    monkeypatch.setattr(data_encryption, "conf", lambda: strict)
    payload = payloads.load([message_id])[message_id]
    assert (payload.body, payload.outcome.value) == (None, "integrity_error")


def test_a_plaintext_secret_in_the_database_is_not_used() -> None:
    consumer = make_consumer(make_channel(), "http://127.0.0.1:9/")
    ConsumerSecret.objects.update(sealed=b"\0known to somebody else, 32 bytes")
    with pytest.raises(Changed):
        load_signer(consumer.id)


def test_the_signers_of_many_consumers_are_read_at_once_without_the_unreadable_one() -> None:
    channel = make_channel()
    changed, *others = (make_consumer(channel, "http://127.0.0.1:9/") for _ in range(4))
    changed.secrets.update(sealed=b"\0known to somebody else, 32 bytes")
    config_cache.refresh(now=True)
    with CaptureQueriesContext(connection) as queries:
        config_cache.prepare_signers([changed.id, *(one.id for one in others)])
        for one in others:
            assert config_cache.signer(one.id).v1[0][0] == SECRET
    table = ConsumerSecret._meta.db_table
    assert sum(table in query["sql"] for query in queries) == 1
    with pytest.raises(Changed):
        config_cache.signer(changed.id)


@pytest.mark.parametrize("encrypt", [False, True])
def test_changed_headers_end_their_deliveries_and_no_pump(
    receiver: Receiver, encrypt: bool
) -> None:
    channel = make_channel(encrypt_bodies=encrypt)
    make_consumer(channel, receiver.url())
    broken: list[Any] = ["no base64!", "", "QUJD", [1], 7]
    for headers in broken:
        (message_id,) = publish(channel, ACCEPTED, headers={"X-Trace": "1"})
        Message.objects.filter(id=message_id).update(headers=headers)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)

    assert receiver.requests() == []
    assert list(Delivery.objects.values_list("state", flat=True)) == ["dead"] * len(broken)
    assert [data_encryption.headers_of(row) for row in Message.objects.all()] == [{}] * len(broken)


def test_large_bodies_are_checked_too() -> None:
    channel = make_channel(encrypt_bodies=False)
    (message_id,) = publish(channel, b"x" * (payloads.SMALL_BYTES + 1))
    row = MessageBody.objects.get()
    row.data = bytes(row.data)[:-1] + b"y"
    row.save()
    assert payloads.PayloadCache().load([message_id])[message_id].is_left
    assert payloads.load([message_id])[message_id].outcome.value == "integrity_error"
