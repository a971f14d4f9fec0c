"""Publish: 2xx means stored byte for byte, any other status means nothing was stored."""

import io
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from broker_site import fast_path
from channels_app.core import ids, times
from channels_app.models import ApiKey, IdempotencyRecord, Message, MessageBody
from channels_app.registry import data_encryption
from tests.support.api import Answer, Api, LeanClient
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    EventTypeFactory,
    ProducerFactory,
    bearer,
)

URL = "channels/orders/messages"


@pytest.fixture(autouse=True)
def _channel(db: None) -> None:
    ChannelFactory.create(slug="orders")


@pytest.fixture(params=["short", "long"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test on the fast path and on the full path of the view.

    They differ in how they read the request and format the response; one function handles both.
    """
    if request.param == "long":
        monkeypatch.setattr(fast_path, "SHORT", ())


@pytest.fixture
def key() -> ApiKey:
    return ApiKeyFactory.create()


@pytest.fixture
def producer(key: ApiKey) -> Api:
    """A client with a producer's key."""
    return Api(key)


def stored(answer: Answer) -> Message:
    number = ids.from_public("msg", answer.json["id"])
    assert number is not None
    return Message.objects.get(id=number)


def body_of(message: Message) -> bytes:
    return data_encryption.decrypt_body(message.id, bytes(message.body.data))


def refused(answer: Answer, status: int, field: str = "") -> None:
    """Check that the response is a problem that names the header, and that nothing was stored."""
    assert (answer.status, answer.json.get("field", "")) == (status, field), answer.body
    assert answer.is_problem
    assert not Message.objects.exists()
    assert not MessageBody.objects.exists()
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.seed("S0-03")
def test_any_body_is_stored_byte_for_byte(producer: Api, way: None) -> None:
    for body, kind in (
        (b'{"id": 1}', "application/json"),
        (bytes(range(256)), "application/octet-stream"),
        ("<a>\u00e9</a>".encode(), 'text/xml; charset="utf-8"'),
        (b"", "text/plain"),
        (b"x", ""),
        (b"not { json", "application/json"),
        (b"a=b&c=d", "application/x-www-form-urlencoded"),
        (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
    ):
        answer = producer.call("POST", URL, body, content_type=kind)
        assert answer.status == 202
        message = stored(answer)
        assert (body_of(message), message.content_type) == (body, kind)
        assert message.body_bytes == len(body)


@pytest.mark.seed("S0-21")
def test_the_publish_response_describes_the_delivery_as_json_whatever_accept_says(
    producer: Api, key: ApiKey, way: None
) -> None:
    channel = ChannelFactory.create(slug="matched")
    for patterns in ([], ["order.*"], ["invoice.*"]):
        ConsumerFactory.create(channel=channel, event_types=patterns)
    ConsumerFactory.create(channel=channel, retired=True)
    answer = producer.call(
        "POST",
        "channels/matched/messages",
        b"{}",
        Hookstation_Event_Type="order.created",
        Accept="text/html",
    )
    assert (answer.status, answer.header("Content-Type")) == (202, "application/json")
    shown = answer.json
    assert set(shown) == {"id", "duplicate", "matched_consumers", "due_at", "url"}
    assert (shown["duplicate"], shown["matched_consumers"]) == (False, 2)
    assert shown["url"] == f"http://127.0.0.1:8000/api/v1/messages/{shown['id']}"
    assert answer.header("Location") == shown["url"]
    message = stored(answer)
    assert (message.producer_id, message.event_type) == (key.producer_id, "order.created")


def test_a_consumer_that_came_since_is_counted(producer: Api) -> None:
    channel = ChannelFactory.create(slug="growing")
    url = "channels/growing/messages"
    assert producer.post(url, b"x").json["matched_consumers"] == 0
    ConsumerFactory.create(channel=channel)
    assert producer.post(url, b"x").json["matched_consumers"] == 1


@pytest.mark.trap("a message without consumers is lost")
def test_without_consumers_a_message_is_stored_with_zero_matches(producer: Api) -> None:
    answer = producer.post(URL, b"x")
    assert (answer.status, answer.json["matched_consumers"]) == (202, 0)
    assert Message.objects.count() == 1


@pytest.mark.seed("S0-31")
def test_a_repeated_key_returns_the_first_message_and_another_body_conflicts(producer: Api) -> None:
    first = producer.post(URL, b"one", Idempotency_Key="k")
    repeat = producer.post(URL, b"one", Idempotency_Key="k")
    assert (first.status, repeat.status) == (202, 200)
    assert repeat.json == {**first.json, "duplicate": True}
    assert repeat.header("Location") == first.header("Location")
    conflict = producer.post(URL, b"two", Idempotency_Key="k")
    assert (conflict.status, conflict.json["code"]) == (409, "idempotency_conflict")
    assert conflict.json["field"] == "Idempotency-Key"
    assert Message.objects.count() == 1


def test_all_options_are_stored(producer: Api) -> None:
    answer = producer.call(
        "POST",
        URL,
        b"{}",
        **{
            "Idempotency-Key": "order 7/\u007e!",
            "Hookstation-Event-Type": "order.created",
            "Hookstation-Priority": "9",
            "Hookstation-Deliver-At": "2030-01-01T00:00:00.5+01:00",
            "Hookstation-Expires-At": "2030-01-02T00:00:00Z",
            "Hookstation-Ordering-Key": "room-7",
            "Hookstation-Header-X-Trace": "abc",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "tracestate": "a=b",
            "baggage": "c=d",
        },
    )
    assert answer.status == 202
    assert answer.json["due_at"] == "2029-12-31T23:00:00.500Z"
    message = stored(answer)
    assert message.due_at == datetime(2029, 12, 31, 23, 0, 0, 500_000, tzinfo=UTC)
    assert message.expires_at == datetime(2030, 1, 2, tzinfo=UTC)
    assert (message.priority, message.ordering_key) == (9, "room-7")
    assert message.idempotency_key == "order 7/~!"
    assert data_encryption.headers_of(message) == {
        "X-Trace": "abc",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=b",
        "baggage": "c=d",
    }


@pytest.mark.trap("a truncated time in a response")
@pytest.mark.parametrize(
    ("asked", "due_at", "slack_ms"),
    [
        ({}, 0, 0),
        ({"Hookstation_Delay": "60000"}, 60_000, 1),
        ({"Hookstation_Delay": "1", "Hookstation_Spread": "60000"}, 1, 60_001),
        ({"Hookstation_Deliver_At": "1893456000123"}, "2030-01-01T00:00:00.123Z", 0),
        (
            {"Hookstation_Deliver_At": "2030-01-01T00:00:00.123456Z"},
            "2030-01-01T00:00:00.124Z",
            0,
        ),
        ({"Hookstation_Deliver_At": "2001-01-01T00:00:00.000001Z"}, 0, 0),
    ],
)
def test_due_at_in_the_response_equals_the_stored_one(
    producer: Api, asked: dict[str, str], due_at: str | int, slack_ms: int
) -> None:
    """It is an instant, or a number of milliseconds after the acceptance."""
    answer = producer.post(URL, b"x", **asked)
    row = stored(answer)
    assert times.instant(answer.json["due_at"]) == row.due_at
    if isinstance(due_at, str):
        earliest = times.instant(due_at)
    else:
        earliest = times.floor_ms(row.accepted_at) + timedelta(milliseconds=due_at)
    assert earliest <= row.due_at <= earliest + timedelta(milliseconds=slack_ms)
    moved = producer.patch(f"messages/{answer.json['id']}", {"delay_ms": 3_600_000})
    assert times.instant(moved.json["due_at"]) == stored(answer).due_at


def test_producer_default_and_maximum_priority_apply() -> None:
    batch = ProducerFactory.create(default_priority=1, max_priority=5)
    api = Api(ApiKeyFactory.create(producer=batch))
    assert stored(api.post(URL, b"x")).priority == 1
    assert stored(api.post(URL, b"x", Hookstation_Priority="5")).priority == 5
    answer = api.post(URL, b"x", Hookstation_Priority="6")
    assert (answer.status, answer.json["code"]) == (422, "priority_too_high")


BAD_HEADERS = {
    "Idempotency-Key": ("", "x" * 256, "caf\u00e9", "a\tb"),
    "Hookstation-Event-Type": ("", "order created", "order.*", "x" * 129, "ordr\u00e9"),
    "Hookstation-Priority": ("", "10", "-1", "high", "4.0", "\u00b2"),
    "Hookstation-Deliver-At": ("", "tomorrow", "2030-01-01T00:00:00", "9" * 16, "NaN"),
    "Hookstation-Delay": ("", "-1", "1.5", "9" * 15, "1_000"),
    "Hookstation-Expires-At": ("x", "2001-01-01T00:00:00Z"),
    "Hookstation-Ordering-Key": ("", "x" * 256, "\u00fc"),
}


def test_a_bad_header_is_named_and_nothing_is_stored(producer: Api) -> None:
    for name, values in BAD_HEADERS.items():
        for value in values:
            refused(producer.post(URL, b"x", **{name: value}), 422, name)
    far = {"Hookstation-Deliver-At": "2099-01-01T00:00:00Z"}
    refused(producer.post(URL, b"x", **far), 422, "Hookstation-Deliver-At")


def test_broker_and_hop_by_hop_names_are_refused(producer: Api) -> None:
    """tests/unit/channels_app/test_headers.py knows all of them."""
    for name, value in (
        *((name, "x") for name in ("Host", "Authorization", "Webhook-Id", "Hookstation-Attempt")),
        *(("X-Long", "x" * 4097), ("X-Control", "a\x01b"), ("X-Empty", ""), ("", "x")),
    ):
        refused(producer.post(URL, b"x", **{f"Hookstation-Header-{name}": value}), 422, "headers")


def test_contradicting_times_are_refused(producer: Api) -> None:
    both = {"Hookstation-Deliver-At": "2030-01-01T00:00:00Z", "Hookstation-Delay": "5"}
    refused(producer.post(URL, b"x", **both), 422, "Hookstation-Delay")
    early = {
        "Hookstation-Deliver-At": "2030-01-01T00:00:00Z",
        "Hookstation-Expires-At": "2029-01-01T00:00:00Z",
    }
    refused(producer.post(URL, b"x", **early), 422, "Hookstation-Expires-At")
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    late = {"Hookstation-Delay": "60000", "Hookstation-Expires-At": soon}
    refused(producer.post(URL, b"x", **late), 422, "Hookstation-Expires-At")


def test_a_malformed_content_type_is_415(producer: Api) -> None:
    for kind in (
        *("json", "/", "text/", "text/plain; charset", "text/ plain", "a/b" * 100),
        *("text/plain\u00e9", "a/b" + ";   " * 60 + "\x01"),
    ):
        refused(producer.call("POST", URL, b"x", content_type=kind), 415, "Content-Type")


def test_a_channel_limits_content_types(producer: Api) -> None:
    ChannelFactory.create(slug="picky", content_types=["application/json", "text/*"])
    url = "channels/picky/messages"
    for kind in ("application/xml", "", "application/jsonx"):
        refused(producer.call("POST", url, b"x", content_type=kind), 415, "Content-Type")
    for kind in ("Application/JSON; charset=utf-8", "text/csv"):
        assert producer.call("POST", url, b"x", content_type=kind).status == 202


def test_an_encoded_body_is_415(producer: Api) -> None:
    for encoding in ("gzip", "br", "deflate, gzip", "GZIP"):
        refused(producer.post(URL, b"x", Content_Encoding=encoding), 415, "Content-Encoding")
    assert producer.post(URL, b"x", Content_Encoding="identity").status == 202


@pytest.mark.trap("bodies without a limit")
def test_a_body_over_the_limit_is_413_before_it_is_read(producer: Api, way: None) -> None:
    ChannelFactory.create(slug="small", max_body_bytes=10)
    url = "channels/small/messages"
    refused(producer.post(url, b"x" * 11), 413, "Content-Length")
    assert producer.post(url, b"x" * 10).status == 202
    Message.objects.all().delete()
    MessageBody.objects.all().delete()
    refused(producer.post(URL, b"x" * (1024 * 1024 + 1)), 413, "Content-Length")


def test_an_invalid_content_length_is_refused(key: ApiKey, way: None) -> None:
    for length in ("abc", "-1", "1e3", "\u00b2", "9" * 30):
        answer = _raw(key, b"x", CONTENT_LENGTH=length)
        assert answer.status in {400, 413}
        refused(answer, answer.status, "Content-Length")


def test_a_body_that_ends_early_is_never_stored(key: ApiKey, way: None) -> None:
    refused(_raw(key, b"half", CONTENT_LENGTH="8"), 400)


def test_a_body_without_a_length_is_411(key: ApiKey, way: None) -> None:
    chunked = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}
    refused(_raw(key, b"x", **chunked), 411, "Content-Length")
    over_http2 = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    refused(_raw(key, b"x", **over_http2), 411, "Content-Length")
    assert _raw(key, b"", **over_http2).status == 202


def _raw(key: ApiKey, body: bytes, **environ: Any) -> Answer:
    """Send a request with additional WSGI variables."""
    extra = {"wsgi.input": io.BytesIO(body), "HTTP_AUTHORIZATION": bearer(key), **environ}
    return Answer(LeanClient().generic("POST", f"/api/v1/{URL}", b"", "text/plain", **extra))


SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}


@pytest.mark.seed("S0-03")
def test_a_body_satisfies_its_event_types_schema(producer: Api, admin: Api) -> None:
    EventTypeFactory.create(channel__slug="typed", name="order.created", schema=SCHEMA)
    url = "channels/typed/messages"
    typed = {"Hookstation-Event-Type": "order.created"}
    for body in (b'{"id": "7"}', b"{}", b"[]", b"not json", b"", b'{"id": NaN}', b"[" * 100_000):
        answer = producer.post(url, body, **typed)
        refused(answer, 422, "body")
        assert answer.json["code"] == "schema_violation"
    assert producer.post(url, b'{"id": 7}', **typed).status == 202
    assert producer.post(url, b"{}").status == 202
    other = {"Hookstation-Event-Type": "order.deleted"}
    assert producer.post(url, b"{}", **other).status == 202
    changed = admin.patch("channels/typed/event-types/order.created", {"schema": {"const": 5}})
    assert changed.status == 200
    assert producer.post(url, b'{"id": 7}', **typed).status == 422
    assert producer.post(url, b"5", **typed).status == 202


def test_a_paused_channel_still_accepts(producer: Api) -> None:
    ChannelFactory.create(slug="paused", paused=True)
    assert producer.post("channels/paused/messages", b"x").status == 202


def test_an_unknown_channel_is_404(producer: Api, way: None) -> None:
    for slug in ("nowhere", "Orders", "%00", "orders%20", "x" * 300):
        answer = producer.post(f"channels/{slug}/messages", b"x")
        assert (answer.status, answer.json["code"]) == (404, "unknown_channel")
    assert not Message.objects.exists()


def test_over_the_rate_is_429_and_nothing_is_stored(way: None) -> None:
    owner = ProducerFactory.create(rate_per_second=0.01, rate_burst=2)
    api = Api(ApiKeyFactory.create(producer=owner))
    assert [api.post(URL, b"x").status for _ in range(2)] == [202, 202]
    answer = api.post(URL, b"x")
    assert (answer.status, answer.json["code"]) == (429, "rate_limited")
    assert answer.is_problem
    assert 90 <= int(str(answer.header("Retry-After"))) <= 100
    assert Message.objects.count() == 2
    assert Api(ApiKeyFactory.create()).post(URL, b"x").status == 202


@pytest.mark.seed("S0-26")
@pytest.mark.django_db(transaction=True)
def test_no_publish_is_acknowledged_while_storage_is_unavailable(way: None) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("locks the whole database, as only SQLite can")
    key = ApiKeyFactory.create()
    api = Api(key)
    assert api.post(URL, b"x").status == 202
    rival = sqlite3.connect(connection.settings_dict["NAME"])
    rival.execute("BEGIN IMMEDIATE")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 10")
    try:
        answer = api.post(URL, b"y")
        assert (answer.status, answer.json["code"]) == (503, "storage_unavailable")
        assert answer.is_problem
        assert answer.header("Retry-After") == "1"
        assert "sqlite" not in answer.body.decode().lower()
    finally:
        rival.rollback()
        rival.close()
        connection.close()
    assert Message.objects.count() == 1
    assert api.post(URL, b"y").status == 202
