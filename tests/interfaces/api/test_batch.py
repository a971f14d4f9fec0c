"""Batches: one result per item, in order; valid items are stored together."""

import base64
import json
import sys
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app.conf import conf
from channels_app.core import ids
from channels_app.ingest import accept as accepting
from channels_app.ingest.accept import Accepted
from channels_app.ingest.concurrency import TURN_S
from channels_app.models import Message
from channels_app.registry import data_encryption
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    ProducerFactory,
)

URL = "channels/orders/messages/batch"


@pytest.fixture(autouse=True)
def _channel(db: None) -> None:
    ConsumerFactory.create(channel=ChannelFactory.create(slug="orders"), event_types=["order.*"])


@pytest.fixture
def producer() -> Api:
    """A client with a producer's key."""
    return Api(ApiKeyFactory.create())


def statuses(items: list[dict[str, Any]]) -> list[int]:
    return [item["status"] for item in items]


def bodies() -> list[bytes]:
    return [
        data_encryption.decrypt_body(message.id, bytes(message.body.data))
        for message in Message.objects.select_related("body").order_by("id")
    ]


def test_an_array_is_stored_in_order(producer: Api) -> None:
    items: list[dict[str, Any]] = [
        {"body": "héllo", "event_type": None, "delay_ms": None},
        {"body_base64": base64.b64encode(bytes(range(256))).decode()},
        {"body": "", "event_type": "order.created"},
        {"body": "{}", "deliver_at": "2030-01-01T00:00:00Z", "expires_at": 1_893_542_400_000},
    ]
    answer = producer.post(URL, items)
    assert answer.status == 207
    shown = answer.json
    assert (shown["accepted"], shown["duplicates"], shown["refused"]) == (4, 0, 0)
    assert statuses(shown["items"]) == [202] * 4
    assert bodies() == ["héllo".encode(), bytes(range(256)), b"", b"{}"]
    numbers = [ids.from_public("msg", item["id"]) for item in shown["items"]]
    assert numbers == list(Message.objects.order_by("id").values_list("id", flat=True))


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/jsonl; charset=utf-8"])
def test_of_json_lines_a_malformed_one_does_not_affect_others(producer: Api, kind: str) -> None:
    body = b'{"body": "1"}\n\n{"body": \n[1]\n{"body": "2"}\r\n'
    body += b"[" * 50_000 + b'\n\xff\n{"body": "3"}'
    answer = producer.call("POST", URL, body, content_type=kind)
    assert statuses(answer.json["items"]) == [202, 422, 422, 202, 422, 422, 202]
    assert bodies() == [b"1", b"2", b"3"]


def test_valid_items_go_in_with_one_transaction(producer: Api) -> None:
    good = [{"body": str(n), "idempotency_key": str(n)} for n in range(10)]
    producer.post(URL, [])
    with CaptureQueriesContext(connection) as queries:
        answer = producer.post(URL, [*good, {"priority": 11}])
    assert (answer.json["accepted"], answer.json["refused"]) == (10, 1)
    written = [query["sql"] for query in queries if query["sql"].startswith("INSERT")]
    assert len(written) == 3


def test_only_beside_a_batch_threads_take_short_turns(
    producer: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    accept = accepting.accept

    def spy(*args: Any, **named: Any) -> list[Accepted]:
        turns.append(sys.getswitchinterval())
        return accept(*args, **named)

    monkeypatch.setattr(accepting, "accept", spy)
    assert producer.post(URL, [{"body": "x"}]).status == 207
    assert producer.post("channels/orders/messages", b"x").status == 202
    assert turns == [pytest.approx(TURN_S), pytest.approx(sys.getswitchinterval())]


def test_a_batch_can_be_sent_again_as_a_whole(producer: Api) -> None:
    items = [{"body": str(n), "idempotency_key": str(n)} for n in range(3)]
    first = producer.post(URL, items).json["items"]
    more = [{"body": "new", "idempotency_key": key} for key in "30"]
    again = producer.post(URL, [*items, *more]).json
    assert statuses(again["items"]) == [200, 200, 200, 202, 409]
    assert [item["id"] for item in again["items"][:3]] == [item["id"] for item in first]
    refused = again["items"][4]
    assert (refused["code"], refused["field"]) == ("idempotency_conflict", "idempotency_key")
    assert (again["duplicates"], again["accepted"]) == (3, 1)


BAD: list[tuple[Any, str]] = [
    *((item, "") for item in (5, "text", None, list[str]())),
    ({}, "body"),
    *(({"body": value}, "body") for value in (5, {"a": 1}, "half \ud800")),
    ({"body": "x", "body_base64": "eA=="}, "body"),
    *(({"body_base64": value}, "body_base64") for value in ("e", "eA== ", "é", 5)),
    *(
        ({"body": "x", field: value}, field)
        for field, values in {
            "content_type": (5,),
            "idempotency_key": ("", 7),
            "event_type": (["a"],),
            "priority": (-1, True, 4.5, 10**40),
            "deliver_at": ("soon", True, 1.5, 10**40, -(10**40)),
            "delay_ms": (-1, 1.5, False, 10**40),
            "spread_ms": (-1, "1s"),
            "headers": ([], {"X": 1}, {"X-A": "\ud800"}),
        }.items()
        for value in values
    ),
    ({"body": "x", "headers": {"X-A": "1", "x-a": "2"}}, "headers"),
    ({"body": "x", "nonsense": 1}, "nonsense"),
    ({"body": "x", "\ud800": 1}, "\\ud800"),
]


def test_bad_items_are_named_between_good_ones(producer: Api) -> None:
    items = [part for item, _ in BAD for part in (item, {"body": "good"})]
    answer = producer.post(URL, items)
    assert answer.status == 207
    shown = answer.json["items"]
    assert statuses(shown) == [422, 202] * len(BAD)
    for (item, field), refused in zip(BAD, shown[::2], strict=True):
        assert refused.get("field", "") == field, item
        assert " " in refused["detail"]
    assert bodies() == [b"good"] * len(BAD)


def test_a_malformed_batch_is_refused_and_an_empty_one_stores_nothing(producer: Api) -> None:
    bad = (b"{}", b"5", b"[", b"", b"[NaN]", b"[" * 100_000, b"\xff")
    for body, kind, status in (
        *((body, "application/json", 400) for body in bad),
        *((b"[]", kind, 415) for kind in ("text/plain", "")),
    ):
        answer = producer.call("POST", URL, body, content_type=kind)
        assert answer.status == status, body[:20]
        assert answer.is_problem
    empty = {"items": [], "accepted": 0, "duplicates": 0, "refused": 0}
    assert producer.post(URL, []).json == empty
    assert not Message.objects.exists()


def test_a_thousand_is_the_limit(producer: Api) -> None:
    assert producer.post(URL, [{"body": ""}] * 1000).json["accepted"] == 1000
    for kind, body in [
        ("application/json", json.dumps([{"body": ""}] * 1001).encode()),
        ("application/x-ndjson", b'{"body": ""}\n' * 1001),
    ]:
        answer = producer.call("POST", URL, body, content_type=kind)
        assert (answer.status, answer.json["code"]) == (422, "batch_too_large")
    assert Message.objects.count() == 1000


def test_too_many_bytes_are_413(producer: Api) -> None:
    answer = producer.post(URL, b" " * (conf().max_batch_bytes + 1))
    assert answer.status == 413
    assert answer.is_problem


def test_each_message_counts_against_the_rate(db: None) -> None:
    api = Api(
        ApiKeyFactory.create(producer=ProducerFactory.create(rate_per_second=1, rate_burst=5))
    )
    assert api.post(URL, [{"body": ""}] * 3).status == 207
    assert api.post(URL, [{"body": ""}] * 3).status == 429
    assert api.post(URL, [{"body": ""}] * 2).status == 207
    assert Message.objects.count() == 5
