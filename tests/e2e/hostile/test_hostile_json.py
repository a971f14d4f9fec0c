"""Hostile JSON on the real server: configuration, batches, and bodies that a schema validates."""

import json

import pytest

from tests.e2e.hostile.conftest import SECRET, Door

pytestmark = pytest.mark.e2e
DEEP = 100_000


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"[" * DEEP + b"]" * DEEP, 400, "malformed_body"),
        (b'{"description":' * 50_000 + b"1" + b"}" * 50_000, 400, "malformed_body"),
        (b'{"description":' + b"[" * 500 + b"]" * 500 + b"}", 422, "invalid_fields"),
        (b'{"max_body_bytes":' + b"9" * 5000 + b"}", 400, "malformed_body"),
        (b'{"max_body_bytes":' + b"9" * 4000 + b"}", 422, "invalid_fields"),
        (b'{"max_body_bytes":1e999}', 422, "invalid_fields"),
        (b'{"max_body_bytes":-1}', 422, "invalid_fields"),
        (b'{"max_body_bytes":1.5}', 422, "invalid_fields"),
        (b'{"max_body_bytes":true}', 422, "invalid_fields"),
        (b'{"max_body_bytes":"10"}', 422, "invalid_fields"),
        (b'{"max_body_bytes":NaN}', 400, "malformed_body"),
        (b'{"max_body_bytes":-Infinity}', 400, "malformed_body"),
        (b'{"default_retry":[1e400]}', 422, "invalid_fields"),
        (b'{"default_retry":{"base":1,"factor":1e308,"cap":1e308}}', 422, "invalid_fields"),
        (b'{"description":"\\ud800"}', 422, "invalid_fields"),
        (b'{"description":"\\udc00\\ud800"}', 422, "invalid_fields"),
        (b'{"description":"a\\u0000b"}', 422, "invalid_fields"),
        (b'{"\\ud800":1}', 422, "invalid_fields"),
        (b'{"\\u0000":1}', 422, "invalid_fields"),
        (b'{"":1}', 422, "invalid_fields"),
        (b'{"' + SECRET + b'":1}', 422, "invalid_fields"),
        (b'{"__proto__":{"paused":true}}', 422, "invalid_fields"),
        (b'{"version":1,"id":1,"slug":"x"}', 422, "invalid_fields"),
        (b'{"content_types":["a/b\\r\\nX: y"]}', 422, "invalid_fields"),
        (b'{"description":"\xff' + SECRET + b'"}', 400, "malformed_body"),
        (b'{"description":"\xed\xa0\x80"}', 400, "malformed_body"),
        ('{"description":"x"}'.encode("utf-16"), 400, "malformed_body"),
        ('{"description":"x"}'.encode("utf-32-le"), 400, "malformed_body"),
        (b'{"description":"a"}{"description":"b"}', 400, "malformed_body"),
        (b"{'description':'a'}", 400, "malformed_body"),
        (b'{"description":"' + SECRET + b'",}', 400, "malformed_body"),
        (b'{"description":"a\nb"}', 400, "malformed_body"),
        (b"null", 400, "malformed_body"),
        (b"\x00", 400, "malformed_body"),
    ],
    ids=lambda part: ascii(part)[:40],
)
def test_malformed_settings_are_refused(door: Door, body: bytes, status: int, code: str) -> None:
    before = door.web.send(door.path).body
    answer = door.put(body)
    assert (answer.status, answer.code) == (status, code)
    assert door.web.send(door.path).body == before


def test_a_repeated_json_field_uses_its_last_value(door: Door) -> None:
    """Almost every parser reads it so: the validated value is also the stored one."""
    answer = door.put(b'{"description":"first","description":"last"}')
    assert json.loads(answer.body)["description"] == "last"
    assert door.put(b'{"max_body_bytes":10,"max_body_bytes":-1}').status == 422


@pytest.mark.parametrize(
    "text", ["😀 \U0001d4b3 \U0010ffff", "e\u0301 é", "\u202e", "ß ẞ \u0131", "\ufeff"]
)
def test_unicode_text_round_trips(door: Door, text: str) -> None:
    assert door.put(json.dumps({"description": text}).encode()).status == 200
    assert json.loads(door.web.send(door.path).body)["description"] == text
    assert door.put(json.dumps({"description": text}, ensure_ascii=False).encode()).status == 200
    assert json.loads(door.web.send(door.path).body)["description"] == text


@pytest.mark.parametrize("name", ["%F0%9F%98%80", "a%00b", "A", "a%20", "-a", "a" * 101, "%ff"])
@pytest.mark.parametrize("below", ["channels", "producers", "channels/{}/consumers"])
def test_invalid_names_are_refused(door: Door, below: str, name: str) -> None:
    body = b'{"url":"http://127.0.0.1:9/"}' if "consumers" in below else b"{}"
    answer = door.web.send(
        f"/api/v1/{below.format(door.channel)}/{name}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        method="PUT",
        body=body,
    )
    assert (answer.status, answer.code) == (422, "invalid_fields")


def batch(door: Door, body: bytes, kind: str = "application/json") -> tuple[int, str, list[int]]:
    """The status, the problem code and the items' statuses."""
    answer = door.web.send(
        f"{door.path}/messages/batch",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        method="POST",
        body=body,
    )
    items = json.loads(answer.body).get("items", [])
    return answer.status, answer.code, [item["status"] for item in items]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP + b"]" * DEEP,
        b'[{"body":"x","priority":' + b"9" * 5000 + b"}]",
        b'[{"body":"x","priority":NaN}]',
        b'[{"body":"\xff' + SECRET + b'"}]',
        b'{"body":"x"}',
        b'["unfinished"',
    ],
    ids=lambda part: ascii(part)[:30],
)
def test_a_malformed_batch_stores_nothing(door: Door, body: bytes) -> None:
    assert batch(door, body) == (400, "malformed_body", [])


def test_hostile_items_are_refused_one_by_one(door: Door) -> None:
    items = [
        '{"body":"\\ud800"}',
        '{"body_base64":"%%%"}',
        '{"body":"x","body_base64":"eA=="}',
        '{"body":{}}',
        '{"body":"x","event_type":"\\ud83d\\ude00"}',
        '{"body":"x","idempotency_key":"\\u0000"}',
        '{"body":"x","priority":1e2}',
        '{"body":"x","priority":' + "9" * 4000 + "}",
        '{"body":"x","delay_ms":1e999}',
        '{"body":"x","deliver_at":' + "9" * 300 + "}",
        '{"body":"x","content_type":"a/b\\r\\nX: y"}',
        '{"body":"x","headers":{"X":"a\\r\\nwebhook-id: forged"}}',
        '{"body":"x","headers":{"Webhook_Id":"forged"}}',
        '{"body":"x","headers":{"X-\\u00e9":"a"}}',
        '{"body":"x","headers":{"X":"\\u20ac"}}',
        '{"body":"x","headers":{"X":"a","x":"b"}}',
        '{"body":"x","headers":' + '{"a":' * 100 + "1" + "}" * 100 + "}",
        '{"body":"x","\\ud800":1}',
        "[" * 50 + "]" * 50,
        "null",
    ]
    good = json.dumps({"body": SECRET.decode()})
    body = f"[{','.join([*items, good])}]".encode()
    assert batch(door, body) == (207, "", [422] * len(items) + [202])
    door.stored.append(SECRET)


def test_hostile_lines_are_refused_one_by_one(door: Door) -> None:
    lines = [
        b"[" * DEEP,
        b'{"body":"\xff"}',
        b'{"body":NaN}',
        b"\x00",
        b'{"body":"x"} {}',
        b"9" * 5000,
    ]
    good = json.dumps({"body": SECRET.decode()}).encode()
    body = b"\r\n".join([*lines, good, b"", b""])
    assert batch(door, body, "application/x-ndjson") == (207, "", [422] * len(lines) + [202])
    door.stored.append(SECRET)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$schema": "https://example.com/schema"},
        {"type": "nothing"},
        {"pattern": "("},
        {"multipleOf": 0},
        "text",
        [],
        7,
    ],
    ids=str,
)
def test_invalid_schemas_are_refused(door: Door, schema: object) -> None:
    answer = door.put(json.dumps({"schema": schema}).encode(), path="/event-types/order.made")
    assert (answer.status, answer.code) == (422, "invalid_fields")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP + b"]" * DEEP,
        b"[" * 900 + b"]" * 900,
        b"NaN",
        b"1e999",
        b"9" * 5000,
        b"\xff",
        b'{"card":"' + SECRET + b'"}',
        b"",
    ],
    ids=lambda part: ascii(part)[:30],
)
def test_bodies_that_exceed_schema_limits_are_refused(door: Door, body: bytes) -> None:
    tree = {
        "anyOf": [
            {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            {"type": "number", "multipleOf": 0.01},
        ]
    }
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}
    put = door.put(json.dumps({"schema": schema}).encode(), path="/event-types/order.made")
    assert put.status == 201
    answer = door.publish("Hookstation-Event-Type: order.made", body=body)
    assert (answer.status, answer.code) == (422, "schema_violation")
