"""Batches: one result per item, in order; valid items are stored together."""

import base64
import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app.conf import conf
from channels_app.core import ids
from channels_app.models import Message
from channels_app.registry import data_encryption
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    EventTypeFactory,
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
        {"body": "héllo", "content_type": "text/plain; charset=utf-8"},
        {"body_base64": base64.b64encode(bytes(range(256))).decode(), "priority": 9},
        {"body": "", "event_type": "order.created", "headers": {"X-A": "1"}},
        {
            "body": "{}",
            "idempotency_key": "k",
            "deliver_at": "2030-01-01T00:00:00Z",
            "expires_at": 1_893_542_400_000,
            "ordering_key": "room-7",
            "event_type": None,
            "delay_ms": None,
        },
    ]
    answer = producer.post(URL, items)
    assert answer.status == 207
    shown = answer.json
    assert (shown["accepted"], shown["duplicates"], shown["refused"]) == (4, 0, 0)
    assert statuses(shown["items"]) == [202] * 4
    assert bodies() == ["héllo".encode(), bytes(range(256)), b"", b"{}"]
    numbers = [ids.from_public("msg", item["id"]) for item in shown["items"]]
    rows = list(Message.objects.order_by("id"))
    assert numbers == [row.id for row in rows]
    assert [row.priority for row in rows] == [4, 9, 4, 4]
    assert data_encryption.headers_of(rows[2]) == {"X-A": "1"}
    assert [item["matched_consumers"] for item in shown["items"]] == [0, 0, 1, 0]
    assert shown["items"][3]["due_at"] == "2030-01-01T00:00:00.000Z"


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/jsonl; charset=utf-8"])
def test_json_lines(producer: Api, kind: str) -> None:
    body = b'{"body": "1"}\n\n{"body": "2"}\r\n{"body": "3"}'
    answer = producer.call("POST", URL, body, content_type=kind)
    assert statuses(answer.json["items"]) == [202] * 3
    assert bodies() == [b"1", b"2", b"3"]


def test_a_malformed_line_does_not_affect_others(producer: Api) -> None:
    body = b'{"body": "1"}\n{"body": \n[1]\n{"body": "2"}\n' + b"[" * 50_000 + b"\n\xff\n"
    answer = producer.call("POST", URL, body, content_type="application/x-ndjson")
    assert statuses(answer.json["items"]) == [202, 422, 422, 202, 422, 422]
    assert bodies() == [b"1", b"2"]


def test_valid_items_go_in_with_one_transaction(producer: Api) -> None:
    good = [{"body": str(n), "idempotency_key": str(n)} for n in range(50)]
    producer.post(URL, [])
    with CaptureQueriesContext(
        connection,
    ) as queries:
        answer = producer.post(URL, [*good, {"priority": 11}])
    assert (answer.json["accepted"], answer.json["refused"]) == (50, 1)
    written = [query["sql"] for query in queries if query["sql"].startswith("INSERT")]
    assert len(written) == 3


def test_a_batch_can_be_sent_again_as_a_whole(producer: Api) -> None:
    items = [{"body": str(n), "idempotency_key": str(n)} for n in range(3)]
    first = producer.post(URL, items).json["items"]
    again = producer.post(URL, [*items, {"body": "new", "idempotency_key": "3"}]).json
    assert statuses(again["items"]) == [200, 200, 200, 202]
    assert [item["id"] for item in again["items"][:3]] == [item["id"] for item in first]
    assert (again["duplicates"], again["accepted"]) == (3, 1)


def test_keys_repeat_within_one_batch(producer: Api) -> None:
    items = [
        {"body": "1", "idempotency_key": "k"},
        {"body": "1", "idempotency_key": "k"},
        {"body": "2", "idempotency_key": "k"},
    ]
    shown = producer.post(URL, items).json["items"]
    assert statuses(shown) == [202, 200, 409]
    assert shown[1]["id"] == shown[0]["id"]
    assert (shown[2]["code"], shown[2]["field"]) == ("idempotency_conflict", "idempotency_key")
    assert bodies() == [b"1"]


BAD: list[tuple[Any, str]] = [
    (5, ""),
    ("text", ""),
    (None, ""),
    ([], ""),
    ({}, "body"),
    ({"body": 5}, "body"),
    ({"body": {"a": 1}}, "body"),
    ({"body": "half \ud800"}, "body"),
    ({"body": "x", "body_base64": "eA=="}, "body"),
    ({"body_base64": "e"}, "body_base64"),
    ({"body_base64": "eA== "}, "body_base64"),
    ({"body_base64": "é"}, "body_base64"),
    ({"body_base64": 5}, "body_base64"),
    ({"body": "x", "content_type": "text"}, "content_type"),
    ({"body": "x", "content_type": 5}, "content_type"),
    ({"body": "x", "idempotency_key": ""}, "idempotency_key"),
    ({"body": "x", "idempotency_key": 7}, "idempotency_key"),
    ({"body": "x", "idempotency_key": "x" * 256}, "idempotency_key"),
    ({"body": "x", "idempotency_key": "\x00"}, "idempotency_key"),
    ({"body": "x", "event_type": "a b"}, "event_type"),
    ({"body": "x", "event_type": ["a"]}, "event_type"),
    ({"body": "x", "priority": 10}, "priority"),
    ({"body": "x", "priority": -1}, "priority"),
    ({"body": "x", "priority": True}, "priority"),
    ({"body": "x", "priority": 4.5}, "priority"),
    ({"body": "x", "priority": 10**40}, "priority"),
    ({"body": "x", "deliver_at": "soon"}, "deliver_at"),
    ({"body": "x", "deliver_at": True}, "deliver_at"),
    ({"body": "x", "deliver_at": 1.5}, "deliver_at"),
    ({"body": "x", "deliver_at": 10**40}, "deliver_at"),
    ({"body": "x", "deliver_at": -(10**40)}, "deliver_at"),
    ({"body": "x", "delay_ms": -1}, "delay_ms"),
    ({"body": "x", "delay_ms": 1.5}, "delay_ms"),
    ({"body": "x", "delay_ms": False}, "delay_ms"),
    ({"body": "x", "delay_ms": 10**40}, "delay_ms"),
    ({"body": "x", "delay_ms": 5, "deliver_at": 5}, "delay_ms"),
    ({"body": "x", "spread_ms": -1}, "spread_ms"),
    ({"body": "x", "spread_ms": "1s"}, "spread_ms"),
    ({"body": "x", "expires_at": 5}, "expires_at"),
    ({"body": "x", "ordering_key": "é"}, "ordering_key"),
    ({"body": "x", "headers": []}, "headers"),
    ({"body": "x", "headers": {"X": 1}}, "headers"),
    ({"body": "x", "headers": {"Host": "x"}}, "headers"),
    ({"body": "x", "headers": {"X-A": "\ud800"}}, "headers"),
    ({"body": "x", "headers": {"X-A": "1", "x-a": "2"}}, "headers"),
    ({"body": "x", "nonsense": 1}, "nonsense"),
    ({"body": "x", "\ud800": 1}, "\\ud800"),
]


@pytest.mark.parametrize(("item", "field"), BAD, ids=lambda part: ascii(part)[:50])
def test_a_bad_item_is_named_between_good_ones(producer: Api, item: Any, field: str) -> None:
    answer = producer.post(URL, [{"body": "before"}, item, {"body": "after"}])
    assert answer.status == 207
    shown = answer.json["items"]
    assert statuses(shown) == [202, 422, 202]
    assert shown[1].get("field", "") == field
    assert " " in shown[1]["detail"]
    assert bodies() == [b"before", b"after"]


def test_the_channels_rules_hold_for_each_item(producer: Api) -> None:
    channel = ChannelFactory.create(
        slug="strict", max_body_bytes=5, content_types=["text/plain"], require_idempotency_key=True
    )
    EventTypeFactory.create(channel=channel, name="number", schema={"type": "integer"})
    fine = {"body": "1", "content_type": "text/plain", "idempotency_key": "k"}
    items = [
        fine,
        fine | {"body": "123456", "idempotency_key": "2"},
        fine | {"content_type": "text/html"},
        {"body": "1", "content_type": "text/plain"},
        fine | {"event_type": "number", "body": "x"},
    ]
    shown = producer.post("channels/strict/messages/batch", items).json["items"]
    assert [item.get("code") for item in shown] == [
        None,
        "body_too_large",
        "unsupported_media_type",
        "invalid_fields",
        "schema_violation",
    ]
    assert Message.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 400),
        (b"5", "application/json", 400),
        (b"[", "application/json", 400),
        (b"", "application/json", 400),
        (b"[NaN]", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[]", "text/plain", 415),
        (b"[]", "", 415),
    ],
)
def test_a_malformed_batch_is_refused(producer: Api, body: bytes, kind: str, status: int) -> None:
    answer = producer.call("POST", URL, body, content_type=kind)
    assert answer.status == status
    assert answer.is_problem
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


def test_an_empty_batch_stores_nothing(producer: Api) -> None:
    assert producer.post(URL, []).json == {
        "items": [],
        "accepted": 0,
        "duplicates": 0,
        "refused": 0,
    }


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


def test_unknown_channel_is_404(producer: Api) -> None:
    assert producer.post("channels/nowhere/messages/batch", []).status == 404
