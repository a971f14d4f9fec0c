"""Sequence numbers: messages are stored in order, whichever request comes first (S2-65)."""

import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from channels_app.database import clock
from channels_app.ingest import sequence
from channels_app.ingest import sequencing as in_turn
from channels_app.ingest.concurrency import ConcurrencyLimit
from channels_app.models import ApiKey, Channel, Message, PendingSequenceNumber, Sequence
from channels_app.registry import data_encryption
from delivery.queue import fanout
from tests.support.api import Answer, Api
from tests.support.factories import ApiKeyFactory, ChannelFactory
from tests.support.ordering import check, end, take
from tests.support.pumping import make_consumer
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
URL = "channels/orders/messages"
PATIENCE_S = 120.0
LONG = 240_000
"""A reorder window so long that no test waits for its end."""


@pytest.fixture
def channel() -> Channel:
    return ChannelFactory.create(slug="orders", reorder_window_ms=LONG)


@pytest.fixture
def key(channel: Channel) -> ApiKey:
    return ApiKeyFactory.create()


def send(key: ApiKey, number: int, ordering_key: str = "A", **headers: str) -> Answer:
    named = {"Hookstation_Ordering_Key": ordering_key, "Hookstation_Producer_Seq": str(number)}
    return Api(key).post(URL, f"{number}".encode(), **named, **headers)


class Sent:
    """A request in its own thread."""

    def __init__(self, key: ApiKey, number: int, **headers: str) -> None:
        self._answer: Answer | None = None
        self._arguments: Any = key, number, headers
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        key, number, headers = self._arguments
        try:
            self._answer = send(key, number, **headers)
        finally:
            connection.close()

    def answer(self) -> Answer:
        self._thread.join(PATIENCE_S)
        assert self._answer is not None
        return self._answer


def early(key: ApiKey, number: int, **headers: str) -> Sent:
    sent = Sent(key, number, **headers)
    until(PendingSequenceNumber.objects.filter(number=number).exists, f"{number} waits")
    return sent


def stored() -> list[str]:
    """Return the bodies in order of acceptance."""
    rows = Message.objects.select_related("body").order_by("id")
    return [data_encryption.decrypt_body(row.id, bytes(row.body.data)).decode() for row in rows]


def stored_sequence() -> Sequence:
    return Sequence.objects.get()


def window(channel: Channel, ms: int) -> None:
    channel.reorder_window_ms = ms
    channel.save()


@pytest.mark.seed("S2-65")
def test_numbered_messages_are_delivered_in_order(channel: Channel, key: ApiKey) -> None:
    consumer = make_consumer(channel, "http://127.0.0.1:9/", ordering=True)
    third = early(key, 3)
    second = early(key, 2)
    assert not Message.objects.exists(), "2xx means stored: these have no answer yet"
    assert send(key, 1).status == 202
    assert [one.answer().status for one in (second, third)] == [202, 202]
    assert stored() == ["1", "2", "3"]
    assert not PendingSequenceNumber.objects.exists()
    now = clock.now() + timedelta(seconds=5)
    fanout.fan_out(100, slot=0)
    heads = []
    while rows := take(consumer, now):
        heads += [row.message_id for row in rows]
        end(rows, "delivered", now)
    check()
    assert heads == sorted(heads)
    assert len(heads) == 3


@pytest.mark.seed("S2-65")
def test_a_missing_number_is_skipped_and_reported(channel: Channel, key: ApiKey) -> None:
    window(channel, 200)
    began = time.monotonic()
    assert send(key, 1).status == 202
    assert send(key, 4).status == 202
    assert time.monotonic() - began >= 0.2
    row = stored_sequence()
    assert (row.expected, row.skipped_count, row.skipped_from, row.skipped_to) == (5, 2, 2, 3)
    late = send(key, 2)
    assert (late.status, late.json["code"]) == (409, "sequence_passed")
    assert late.is_problem
    assert "5 is expected" in late.json["detail"]
    assert late.json["field"] == "Hookstation-Producer-Seq"
    assert stored() == ["1", "4"]


def test_a_repeated_number_is_refused_unless_it_is_the_same_message(key: ApiKey) -> None:
    first = send(key, 1, Idempotency_Key="one")
    again = send(key, 1, Idempotency_Key="one")
    assert (again.status, again.json["id"]) == (200, first.json["id"])
    other = send(key, 2, Idempotency_Key="one")
    assert (other.status, other.json["code"]) == (409, "idempotency_conflict")
    double = send(key, 1, Idempotency_Key="two")
    assert (double.status, double.json["code"]) == (409, "sequence_passed")
    assert send(key, 2, Idempotency_Key="three").status == 202
    assert stored() == ["1", "2"]


def test_two_waiting_requests_with_one_number_store_one_message(key: ApiKey) -> None:
    pair = [early(key, 2, Idempotency_Key="k"), early(key, 2, Idempotency_Key="k")]
    send(key, 1)
    assert sorted(one.answer().status for one in pair) == [200, 202]
    assert stored() == ["1", "2"]


@pytest.mark.seed("S2-65")
def test_number_zero_restarts_and_refuses_waiting_requests(key: ApiKey) -> None:
    for number in (1, 2):
        assert send(key, number).status == 202
    waiting = early(key, 7)
    assert send(key, 0).status == 202
    refused = waiting.answer()
    assert (refused.status, refused.json["code"]) == (409, "sequence_restarted")
    assert send(key, 1).status == 202
    assert stored() == ["1", "2", "0", "1"]
    assert not PendingSequenceNumber.objects.exists()
    assert (stored_sequence().epoch, stored_sequence().expected) == (1, 2)


@pytest.mark.seed("S2-65")
def test_the_lowest_waiting_number_is_stored_first(
    channel: Channel, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: ticks[0], sleep=time.sleep, time=time.time)
    monkeypatch.setattr(in_turn, "time", clocks)
    fifth = early(key, 5)
    ticks[0] = 1.0
    third = early(key, 3)
    ticks[0] = LONG / 1000  # the window of 5 ends, that of 3 does not
    assert [one.answer().status for one in (fifth, third)] == [202, 202]
    assert stored() == ["3", "5"]
    assert stored_sequence().skipped_count == 3


def test_a_dead_waiting_request_delays_others_briefly(channel: Channel, key: ApiKey) -> None:
    window(channel, 100)
    send(key, 1)
    dead = PendingSequenceNumber(id=1, sequence_id=stored_sequence().id, number=3)
    dead.until = clock.now() + timedelta(seconds=1)
    dead.save()
    assert send(key, 5).status == 202
    assert stored() == ["1", "5"]
    assert stored_sequence().skipped_count == 3


def test_without_a_window_no_request_waits(channel: Channel, key: ApiKey) -> None:
    window(channel, 0)
    assert [send(key, number).status for number in (3, 2, 9)] == [202, 409, 202]
    assert stored_sequence().skipped_count == 7


def test_sequences_are_per_producer_and_key(key: ApiKey) -> None:
    assert send(key, 1).status == 202
    assert send(key, 1, "B").status == 202
    assert send(ApiKeyFactory.create(), 1).status == 202
    assert Api(key).post(URL, b"x", Hookstation_Ordering_Key="A").status == 202
    assert set(Sequence.objects.values_list("expected", flat=True)) == {2}
    assert Sequence.objects.count() == 3


def test_too_many_waiting_requests_are_refused(
    key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_turn, "bodies", ConcurrencyLimit(0))
    refused = send(key, 2)
    assert (refused.status, refused.json["code"]) == (429, "too_many_early")
    assert refused.header("Retry-After")
    assert not Message.objects.exists()
    assert send(key, 1).status == 202


def test_an_invalid_number_is_refused(key: ApiKey) -> None:
    for value in ("", "-1", "1.5", "x", "\u00b2", "9007199254740992", "9" * 400):
        named = {"Hookstation_Ordering_Key": "A", "Hookstation_Producer_Seq": value}
        answer = Api(key).post(URL, b"x", **named)
        assert (answer.status, answer.json["field"]) == (422, "Hookstation-Producer-Seq"), value
    answer = Api(key).post(URL, b"x", Hookstation_Producer_Seq="1")
    assert (answer.status, answer.json["field"]) == (422, "Hookstation-Producer-Seq"), "no key"


def batch(key: ApiKey, *numbers: int | None) -> list[dict[str, Any]]:
    items = [
        {"body": f"{number}", "ordering_key": "A", "producer_seq": number} for number in numbers
    ]
    answer = Api(key).post(f"{URL}/batch", items)
    assert answer.status == 207
    found: list[dict[str, Any]] = answer.json["items"]
    return found


def statuses(items: list[dict[str, Any]]) -> list[int]:
    return [item["status"] for item in items]


@pytest.mark.seed("S2-65")
def test_a_batch_is_stored_in_the_order_of_its_numbers(channel: Channel, key: ApiKey) -> None:
    assert statuses(batch(key, 3, None, 1, 2)) == [202] * 4
    assert stored() == ["None", "1", "2", "3"]
    window(channel, 200)
    assert statuses(batch(key, 5, 0, 2, 1, 4)) == [409, 202, 202, 202, 202]
    assert (stored_sequence().expected, stored_sequence().skipped_count) == (5, 1)


def test_a_batch_waits_for_what_is_missing(channel: Channel, key: ApiKey) -> None:
    window(channel, 300)
    items = batch(key, 1, 1, 3, 2, 5)
    assert [item["status"] for item in items] == [202, 409, 202, 202, 202]
    assert items[1]["code"] == "sequence_passed"
    assert items[1]["field"] == "producer_seq"
    assert stored() == ["1", "2", "3", "5"]
    assert stored_sequence().skipped_count == 1


def test_an_unused_sequence_is_deleted(key: ApiKey) -> None:
    send(key, 1)
    assert list(sequence.forget(clock.now())) == []
    later = clock.now() + sequence.FORGOTTEN_AFTER + timedelta(seconds=1)
    assert list(sequence.forget(later)) == [1]
    assert send(key, 1).status == 202


def test_messages_without_a_number_query_no_sequences(key: ApiKey) -> None:
    Api(key).post(URL, b"x", Hookstation_Ordering_Key="A")
    seen: list[str] = []

    def look(execute: Any, sql: str, *more: Any) -> Any:
        seen.append(sql)
        return execute(sql, *more)

    with connection.execute_wrapper(look):
        Api(key).post(URL, b"x", Hookstation_Ordering_Key="A")
    assert seen
    assert not [sql for sql in seen if "sequence" in sql or "pendingsequencenumber" in sql]
