"""Publish: 2xx means stored byte for byte, any other status means nothing was stored."""

import io
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from broker_site.server import fast_path
from channels_app.core import ids, times
from channels_app.models import (
    ApiKey,
    Channel,
    IdempotencyRecord,
    Message,
    MessageBody,
    Producer,
)
from channels_app.registry import data_encryption
from tests.support.api import Answer, Api, LeanClient
from tests.support.doors import DOORS, Door
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    EventTypeFactory,
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


def stored(result: dict[str, Any]) -> Message:
    number = ids.from_public("msg", result["id"])
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


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest, key: ApiKey) -> Door:
    """Each door, with a producer's key."""
    return Door(request.param, key)


@pytest.mark.seed("S0-03")
def test_any_body_is_stored_byte_for_byte(door: Door) -> None:
    for body, kind in (
        (b'{"id": 1}', "application/json"),
        (bytes(range(256)), "application/octet-stream"),
        ("<a>\u00e9</a>".encode(), 'text/xml; charset="utf-8"'),
        (b"", "text/plain"),
        (b"x", None),
        (b"not { json", "application/json"),
        (b"a=b&c=d", "application/x-www-form-urlencoded"),
        (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
    ):
        result = door.publish("orders", body, **({"content_type": kind} if kind else {}))
        assert result["status"] == 202
        message = stored(result)
        assert (body_of(message), message.content_type) == (body, kind or "")
        assert message.body_bytes == len(body)


def test_all_options_are_stored(door: Door) -> None:
    result = door.publish(
        "orders",
        b"{}",
        idempotency_key="order 7/\u007e!",
        event_type="order.created",
        priority=9,
        deliver_at="2030-01-01T00:00:00.5+01:00",
        expires_at="2030-01-02T00:00:00Z",
        ordering_key="room-7",
        headers={"X-Trace": "abc"},
    )
    assert (result["status"], result["due_at"]) == (202, "2029-12-31T23:00:00.500Z")
    message = stored(result)
    assert message.due_at == datetime(2029, 12, 31, 23, 0, 0, 500_000, tzinfo=UTC)
    assert message.expires_at == datetime(2030, 1, 2, tzinfo=UTC)
    assert (message.event_type, message.priority) == ("order.created", 9)
    assert (message.idempotency_key, message.ordering_key) == ("order 7/~!", "room-7")
    assert data_encryption.headers_of(message) == {"X-Trace": "abc"}
    assert stored(door.publish("orders", priority=0)).priority == 0


@pytest.mark.trap("a message without consumers is lost")
def test_without_consumers_a_message_is_stored_with_zero_matches(door: Door) -> None:
    assert door.publish("orders")["matched_consumers"] == 0
    assert Message.objects.count() == 1
    ConsumerFactory.create(channel=Channel.objects.get(slug="orders"), event_types=["order.*"])
    assert door.publish("orders")["matched_consumers"] == 0
    assert door.publish("orders", event_type="order.paid")["matched_consumers"] == 1


@pytest.mark.seed("S0-31")
def test_a_repeated_key_returns_the_first_message_and_another_body_conflicts(door: Door) -> None:
    first, again = (door.publish("orders", "one", idempotency_key="k") for _ in range(2))
    assert (first["status"], first["duplicate"]) == (202, False)
    assert again == {**first, "status": 200, "duplicate": True}
    conflict = door.publish("orders", "two", idempotency_key="k")
    assert (conflict["status"], conflict["code"]) == (409, "idempotency_conflict")
    assert conflict["field"] == "idempotency_key"
    assert Message.objects.count() == 1


@pytest.mark.trap("a truncated time in a response")
@pytest.mark.parametrize(
    ("asked", "due_at", "slack_ms"),
    [
        ({}, 0, 0),
        ({"delay_ms": 60_000}, 60_000, 1),
        ({"delay_ms": 1, "spread_ms": 60_000}, 1, 60_001),
        ({"deliver_at": "1893456000123"}, "2030-01-01T00:00:00.123Z", 0),
        ({"deliver_at": "2030-01-01T00:00:00.123456Z"}, "2030-01-01T00:00:00.124Z", 0),
        ({"deliver_at": "2001-01-01T00:00:00.000001Z"}, 0, 0),
    ],
)
def test_due_at_in_the_response_equals_the_stored_one(
    door: Door, asked: dict[str, Any], due_at: str | int, slack_ms: int
) -> None:
    """It is an instant, or a number of milliseconds after the acceptance."""
    result = door.publish("orders", **asked)
    row = stored(result)
    assert times.instant(result["due_at"]) == row.due_at
    if isinstance(due_at, str):
        earliest = times.instant(due_at)
    else:
        earliest = times.floor_ms(row.accepted_at) + timedelta(milliseconds=due_at)
    assert earliest <= row.due_at <= earliest + timedelta(milliseconds=slack_ms)
    moved = Api(door.key).patch(f"messages/{result['id']}", {"delay_ms": 3_600_000})
    assert times.instant(moved.json["due_at"]) == stored(result).due_at


def test_producer_default_and_maximum_priority_apply(door: Door) -> None:
    Producer.objects.update(default_priority=1, max_priority=5)
    assert stored(door.publish("orders")).priority == 1
    assert stored(door.publish("orders", priority=5)).priority == 5
    assert door.publish("orders", priority=6)["code"] == "priority_too_high"


FAR, EARLY, PAST = "2030-01-01T00:00:00Z", "2029-01-01T00:00:00Z", "2001-01-01T00:00:00Z"
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("idempotency_key", {"idempotency_key": key}) for key in ("x" * 256, "caf\u00e9", "a\tb")),
    *(("event_type", {"event_type": kind}) for kind in ("order created", "order.*", "x" * 129)),
    ("priority", {"priority": 10}),
    ("deliver_at", {"deliver_at": "2099-01-01T00:00:00Z"}),
    ("delay_ms", {"delay_ms": 10**15}),
    ("delay_ms", {"delay_ms": 5, "deliver_at": FAR}),
    ("expires_at", {"expires_at": PAST}),
    ("expires_at", {"deliver_at": FAR, "expires_at": EARLY}),
    ("expires_at", {"delay_ms": 60_000, "expires_at": ""}),
    *(("ordering_key", {"ordering_key": key}) for key in ("x" * 256, "\u00fc")),
    *(("headers", {"headers": {name: "x"}}) for name in ("Host", "Hookstation-Attempt")),
    *(("headers", {"headers": {"X-A": text}}) for text in ("x" * 4097, "a\x01b")),
    *(("content_type", {"content_type": kind}) for kind in ("json", "/", "text/", "text/ plain")),
    *(("content_type", {"content_type": kind}) for kind in ("text/plain; charset", "a/b" * 100)),
    *(("content_type", {"content_type": f"a/b{end}"}) for end in ("\u00e9", ";   " * 60 + "\x01")),
]


def test_an_invalid_option_is_named_and_nothing_is_stored(door: Door) -> None:
    """tests/unit/channels_app/test_headers.py knows all headers that are refused."""
    for field, options in REFUSED:
        if options.get("expires_at") == "":
            soon = datetime.now(UTC) + timedelta(seconds=30)
            options = options | {"expires_at": times.text(soon)}
        result = door.publish("orders", **options)
        # Items of a batch have 422 for whatever is wrong with them.
        is_type = field == "content_type" and door.name not in {"array", "lines"}
        assert (result["status"], result["field"]) == (415 if is_type else 422, field), options
        assert " " in result["detail"]
    for model in (Message, MessageBody, IdempotencyRecord):
        assert not model.objects.exists()


def test_the_channels_rules_hold_for_each_message(door: Door) -> None:
    channel = ChannelFactory.create(
        slug="strict",
        max_body_bytes=5,
        content_types=["application/json", "text/*"],
        require_idempotency_key=True,
        paused=True,
    )
    EventTypeFactory.create(channel=channel, name="number", schema={"type": "integer"})
    fine = {"body": "1", "content_type": "text/csv", "idempotency_key": "k"}
    cases: list[tuple[dict[str, Any], str | None]] = [
        (fine, None),
        (fine | {"content_type": "Application/JSON; charset=utf-8", "idempotency_key": "2"}, None),
        (fine | {"body": "12345", "idempotency_key": "3", "event_type": "number"}, None),
        (fine | {"body": "123456"}, "body_too_large"),
        *((fine | {"content_type": kind}, "unsupported_media_type") for kind in ("a/b", "text")),
        (fine | {"content_type": "application/jsonx"}, "unsupported_media_type"),
        ({"body": "1", "idempotency_key": "k"}, "unsupported_media_type"),
        ({"body": "1", "content_type": "text/csv"}, "invalid_fields"),
        (fine | {"event_type": "number", "body": "x"}, "schema_violation"),
    ]
    results = door.publish_all("strict", *(item for item, _ in cases))
    assert [result.get("code") for result in results] == [code for _, code in cases]
    assert Message.objects.count() == 3


SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}


@pytest.mark.seed("S0-03")
def test_a_body_satisfies_its_event_types_schema(door: Door, admin: Api) -> None:
    EventTypeFactory.create(channel__slug="typed", name="order.created", schema=SCHEMA)
    kind = "order.created"
    for body in (b'{"id": "7"}', b"{}", b"[]", b"not json", b"", b'{"id": NaN}', b"[" * 100_000):
        result = door.publish("typed", body, event_type=kind)
        assert (result["code"], result["field"]) == ("schema_violation", "body")
    assert not Message.objects.exists()
    assert door.publish("typed", b'{"id": 7}', event_type=kind)["status"] == 202
    assert door.publish("typed", b"{}")["status"] == 202
    assert door.publish("typed", b"{}", event_type="order.deleted")["status"] == 202
    changed = admin.patch("channels/typed/event-types/order.created", {"schema": {"const": 5}})
    assert changed.status == 200
    assert door.publish("typed", b'{"id": 7}', event_type=kind)["status"] == 422
    assert door.publish("typed", b"5", event_type=kind)["status"] == 202


def test_an_unknown_channel_is_404(door: Door) -> None:
    for slug in ("nowhere", "Orders", "%00", "orders%20", "x" * 300):
        result = door.publish(slug)
        assert (result["status"], result["code"]) == (404, "unknown_channel")
    assert not Message.objects.exists()


def test_over_the_rate_is_429_and_nothing_is_stored(door: Door) -> None:
    Producer.objects.update(rate_per_second=0.01, rate_burst=2)
    assert [door.publish("orders")["status"] for _ in range(2)] == [202, 202]
    result = door.publish("orders")
    assert (result["status"], result["code"]) == (429, "rate_limited")
    assert 90 <= result["retry_after_s"] <= 100
    assert Message.objects.count() == 2
    assert Door(door.name, ApiKeyFactory.create()).publish("orders")["status"] == 202


# One message over REST


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
    message = stored(shown)
    assert (message.producer_id, message.event_type) == (key.producer_id, "order.created")


BAD_HEADERS = {
    "Idempotency-Key": ("",),
    "Hookstation-Event-Type": ("", "ordr\u00e9"),
    "Hookstation-Priority": ("", "10", "-1", "high", "4.0", "\u00b2"),
    "Hookstation-Deliver-At": ("", "tomorrow", "2030-01-01T00:00:00", "9" * 16, "NaN"),
    "Hookstation-Delay": ("", "-1", "1.5", "1_000"),
    "Hookstation-Expires-At": ("x",),
    "Hookstation-Ordering-Key": ("",),
}


def test_a_bad_header_is_named_and_nothing_is_stored(producer: Api) -> None:
    for name, values in BAD_HEADERS.items():
        for value in values:
            refused(producer.post(URL, b"x", **{name: value}), 422, name)
    for name, value in (
        ("Authorization", "x"),
        ("Hookstation-Attempt", "x"),
        ("X-A", ""),
        ("", "x"),
    ):
        refused(producer.post(URL, b"x", **{f"Hookstation-Header-{name}": value}), 422, "headers")


def test_trace_headers_are_forwarded(producer: Api) -> None:
    given = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=b",
        "baggage": "c=d",
    }
    message = stored(producer.post(URL, b"x", **given).json)
    assert data_encryption.headers_of(message) == given


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


CHUNKED = {
    "CONTENT_LENGTH": "",
    "CONTENT_TYPE": "application/json",
    "HTTP_TRANSFER_ENCODING": "chunked",
    "wsgi.input_terminated": True,
}
OVER_HTTP2 = {name: CHUNKED[name] for name in ("CONTENT_LENGTH", "CONTENT_TYPE")} | {
    "wsgi.input_terminated": True
}
framings = pytest.mark.parametrize("framing", [CHUNKED, OVER_HTTP2], ids=["chunks", "HTTP/2"])


@pytest.mark.trap("half a message in chunks")
@framings
def test_only_a_body_whose_end_is_certain_may_come_without_a_length(
    key: ApiKey, way: None, framing: dict[str, Any]
) -> None:
    """The server reports a broken connection as the end of the body."""
    refused(_raw(key, b"x", **framing | {"CONTENT_TYPE": "text/plain"}), 411, "Content-Length")
    for incomplete in (b'{"id": 1', b'[{"id": 1}', b'"text"', b"12"):
        refused(_raw(key, incomplete, **framing), 400)
    for kind, body in (("application/json; charset=utf-8", b'{"id": 1}\n'), ("a/b+json", b"[1]")):
        message = stored(_raw(key, body, **framing | {"CONTENT_TYPE": kind}).json)
        assert body_of(message) == body


@pytest.mark.trap("bodies without a limit")
@framings
def test_a_body_without_a_length_is_413_once_too_much_was_read(
    key: ApiKey, way: None, framing: dict[str, Any]
) -> None:
    source = io.BytesIO(b"[" + b"1," * 2_000_000)
    refused(_raw(key, b"", **framing | {"wsgi.input": source}), 413, "Content-Length")
    assert source.tell() == 1024 * 1024 + 1


def test_a_request_without_chunks(key: ApiKey, way: None) -> None:
    """The last chunk may be missing, so an empty body is not taken for a complete one."""
    refused(_raw(key, b"", **CHUNKED), 400)
    refused(_raw(key, b"{}", **CHUNKED | {"wsgi.input_terminated": False}), 411, "Content-Length")
    assert _raw(key, b"", **OVER_HTTP2).status == 202


def _raw(key: ApiKey, body: bytes, **environ: Any) -> Answer:
    """Send a request with additional WSGI variables."""
    extra = {"wsgi.input": io.BytesIO(body), "HTTP_AUTHORIZATION": bearer(key), **environ}
    return Answer(LeanClient().generic("POST", f"/api/v1/{URL}", b"", "text/plain", **extra))


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
