"""Hostile request lines on the real server: methods, addresses, headers and credentials."""

import json
import string
from contextlib import suppress

import pytest

from channels_app.core import ids
from tests.e2e.hostile.conftest import SECRET, Door

pytestmark = pytest.mark.e2e
CHANNELS = "/api/v1/channels"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "X")


@pytest.mark.parametrize(
    ("below", "allowed"),
    [
        ("", "GET PUT PATCH HEAD"),
        ("/messages", "GET POST HEAD"),
        ("/messages/batch", "POST"),
        ("/consumers", "GET HEAD"),
        ("/consumers/a", "GET PUT PATCH DELETE HEAD"),
        ("/consumers/a/pause", "POST"),
    ],
)
def test_other_methods_get_405_with_allow(door: Door, below: str, allowed: str) -> None:
    for method in METHODS:
        answer = door.web.send(door.path + below, "Content-Length: 0", method=method)
        if method in allowed.split():
            assert answer.status != 405, method
        else:
            assert answer.status == 405, method
            assert method == "HEAD" or answer.code == "method_not_allowed"
            assert set(answer.headers["allow"].split(", ")) == set(allowed.split())
    if below == "/messages":
        door.stored.append(b"")


def test_head_is_get_without_a_body(door: Door) -> None:
    head, get = (door.web.send(door.path, method=method) for method in ("HEAD", "GET"))
    assert (head.status, head.body) == (200, b"")
    assert head.headers["etag"] == get.headers["etag"]
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize(
    "target",
    [
        f"{CHANNELS}/",
        f"{CHANNELS};v=1",
        "/api/v1",
        "/api/v2/channels",
        "/api/v1/../../../etc/passwd",
        f"{CHANNELS}/..%2f..%2f..%2fmanage.py",
        f"{CHANNELS}/%2e%2e/%2e%2e/admin",
        "/api/v1//channels",
        f"{CHANNELS}/a%2fb%2fc",
    ],
)
def test_unknown_urls_get_404(door: Door, target: str) -> None:
    answer = door.web.send(target)
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize(
    "target",
    [
        "/static/../manage.py",
        "/static/%2e%2e/manage.py",
        "/static/..%2fmanage.py",
        "/static//etc/passwd",
        "/..%5cmanage.py",
        "//api/v1/channels",
        "/%00",
    ],
)
def test_no_file_can_be_reached(door: Door, target: str) -> None:
    answer = door.web.send(target)
    assert answer.status == 404
    assert b"DJANGO_SETTINGS_MODULE" not in answer.body


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        (f"{CHANNELS}/%ff%fe", 404, "unknown_channel"),
        (f"{CHANNELS}/%00", 404, "unknown_channel"),
        (f"{CHANNELS}/a%0d%0aSet-Cookie:%20a=b", 404, "unknown_channel"),
        (f"{CHANNELS}/%f0%9f%98%80", 404, "unknown_channel"),
        (f"{CHANNELS}/%ed%a0%80", 404, "unknown_channel"),
        (f"{CHANNELS}/" + "a" * 9000, 404, "unknown_channel"),
        (f"{CHANNELS}/" + "a" * 70_000, 414, ""),
        (f"{CHANNELS}/".encode() + b"\xff\xfe", 400, ""),
        (f"{CHANNELS}/a b", 400, ""),
        (f"{CHANNELS}?cursor=%ff%fe", 422, "invalid_parameter"),
        (f"{CHANNELS}?cursor=%00", 422, "invalid_parameter"),
        (f"{CHANNELS}?cursor=" + "a" * 60_000, 422, "invalid_parameter"),
        (f"{CHANNELS}?limit=1&limit=2&limit=%d9%a3", 422, "invalid_parameter"),
        (f"{CHANNELS}?limit=" + "9" * 5000, 422, "invalid_parameter"),
        (f"{CHANNELS}?%00=1", 422, "invalid_parameter"),
        (f"{CHANNELS}?" + "&".join(f"a{n}=1" for n in range(2000)), 422, "invalid_parameter"),
    ],
    ids=lambda part: ascii(part)[:40],
)
def test_malformed_urls_are_handled(
    door: Door, target: str | bytes, status: int, code: str
) -> None:
    answer = door.web.send(target)
    assert (answer.status, answer.code) == (status, code)
    assert "set-cookie" not in answer.headers


def test_long_and_many_headers(door: Door) -> None:
    assert door.web.send(CHANNELS, "X-Long: " + "a" * 300_000).status == 200
    assert door.web.send(CHANNELS, *(f"X-{n}: a" for n in range(500))).status == 431
    for target, line in [(CHANNELS, "X-Long: " + "a" * 5_000_000), ("/" + "a" * 5_000_000, "X: a")]:
        # The server may close the connection while we send: the response may be lost.
        with suppress(OSError):
            assert door.web.send(target, line).status == 431


@pytest.mark.trap("header injection")
@pytest.mark.parametrize(
    "line",
    [
        b"Hookstation-Header-X-A: a\x00b",
        b"Hookstation-Header-X-A: a\x01b",
        b"Hookstation-Header-X-A: a\x7fb",
        b"Hookstation-Header-X-A: a\rHookstation-Priority: 9",
        b"Hookstation-Header-X-A: a\r\n b",
        b"Hookstation-Header-X-A : a",
        b"Hookstation-Header-X A: a",
        b"Hookstation-Header-X-\xff: a",
        b"no colon",
        b": no name",
    ],
)
def test_malformed_header_lines_are_refused(door: Door, line: bytes) -> None:
    assert door.publish(line).status == 400


@pytest.mark.parametrize(
    "line",
    [
        b"Hookstation-Ordering-Key: a\tb",
        b"Hookstation-Ordering-Key: \xff",
        b"Hookstation-Ordering-Key: ",
        b"Idempotency-Key: \xc3\xa9",
        b"Idempotency-Key: " + b"k" * 256,
        b"Hookstation-Event-Type: order.*",
        b"Hookstation-Event-Type: \xf0\x9f\x98\x80",
        b"Hookstation-Priority: \xb3",
        b"Hookstation-Priority: 1\r\nHookstation-Priority: 2",
        b"Hookstation-Delay: 1e3",
        b"Hookstation-Delay: " + b"9" * 400,
        b"Hookstation-Deliver-At: 99999-01-01T00:00:00Z",
        b"Hookstation-Deliver-At: 0001-01-01T00:00:00+23:59",
        b"Hookstation-Expires-At: 9999-12-31T23:59:59-23:59",
        b"Hookstation-Header-X-A: a\tb",
        b"Hookstation-Header-X-A: \xc3\xa9",
        b"Hookstation-Header-X-A: " + b"a" * 4097,
        b"Hookstation-Header-: a",
        b"Hookstation-Header-" + b"x" * 101 + b": a",
    ],
    ids=lambda line: ascii(line)[2:50],
)
def test_invalid_header_values_are_refused(door: Door, line: bytes) -> None:
    answer = door.publish(line)
    assert (answer.status, answer.code) == (422, "invalid_fields")


@pytest.mark.trap("a producer forges the broker's headers")
@pytest.mark.parametrize(
    "name",
    [
        *("webhook-id", "webhook-signature", "Webhook-Timestamp", "WEBHOOK_ID"),
        *("Hookstation-Channel", "hookstation_attempt", "Hookstation-Header-X"),
        *("Host", "Content-Length", "content_type", "Transfer-Encoding", "Connection", "TE"),
        *("Authorization", "Cookie", "Proxy-Authorization", "User-Agent", "Expect", "Upgrade"),
    ],
)
def test_the_brokers_headers_cannot_be_forged(door: Door, name: str) -> None:
    answer = door.publish(f"Hookstation-Header-{name}: forged")
    assert (answer.status, answer.code) == (422, "invalid_fields")


def test_a_forwarded_value_ends_where_its_line_ends(door: Door) -> None:
    """For some parsers a bare LF ends a line: the rest must become another header."""
    answer = door.publish(b"Hookstation-Header-X-A: a\nwebhook-id: forged\nX-B: b")
    assert answer.status == 202
    door.stored.append(SECRET)
    message = json.loads(door.web.send(f"/api/v1/messages/{json.loads(answer.body)['id']}").body)
    assert message["headers"] == {"X-A": "a"}


@pytest.mark.trap("decompression bombs")
@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "identity, gzip", "x"])
def test_compressed_bodies(door: Door, coding: str) -> None:
    answer = door.publish(f"Content-Encoding: {coding}")
    assert (answer.status, answer.code) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Authorization: bearer {key}", 200),
        ("AUTHORIZATION: BEARER {key}", 200),
        ("Authorization: Bearer  {key}", 200),
        ("Authorization:Bearer {key}", 200),
        ("Authorization: Bearer {key}x", 401),
        ("Authorization: Bearer {upper}", 401),
        ("Authorization: Bearer {key}, Bearer {key}", 401),
        ("Authorization: Bearer {key}\r\nAuthorization: Bearer {key}", 401),
        ("Authorization: Bearer {key}\r\nAuthorization: Bearer hsk_a_b", 401),
        ("Authorization: Bearer\t{key}", 401),
        ("Authorization: Bearer", 401),
        ("Authorization: {key}", 401),
        ("Authorization: Basic {key}", 401),
        ("Authorization: ", 401),
        ("Authorization: Bearer \xff", 401),
        ("Authorization_: Bearer {key}", 401),
        ("Proxy-Authorization: Bearer {key}", 401),
        ("Cookie: Authorization=Bearer {key}", 401),
        ("X-Api-Key: {key}", 401),
    ],
)
def test_a_key_is_accepted_only_in_the_authorization_header(
    door: Door, line: str, status: int
) -> None:
    shown = line.format(key=door.web.key, upper=door.web.key.upper()).encode("latin-1")
    answer = door.web.send(CHANNELS, shown, authorized=False)
    assert answer.status == status
    if status == 401:
        assert answer.code in {"bad_key", "not_authenticated"}
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("name", ["key", "access_token", "Authorization", "token", "api_key"])
def test_a_key_in_the_url_does_not_authenticate(door: Door, name: str) -> None:
    answer = door.web.send(f"{CHANNELS}?{name}={door.web.key}", authorized=False)
    assert (answer.status, answer.code) == (401, "not_authenticated")


@pytest.mark.trap("ids that match wildcards")
@pytest.mark.parametrize("spelt", ["{upper}", "{start}%25", "{start}_", "{name}%20", "%20{name}"])
def test_names_match_exactly(door: Door, spelt: str) -> None:
    """No case folding, no trailing blanks, no SQL wildcards, on any database."""
    name = door.channel
    other = spelt.format(upper=name.upper(), start=name[:-1], name=name)
    for below in ("", "/messages", "/consumers", "/event-types"):
        answer = door.web.send(f"{CHANNELS}/{other}{below}")
        assert (answer.status, answer.code) == (404, "unknown_channel")
    assert door.put(b'{"url":"http://127.0.0.1:9/"}', path="/consumers/shop").status == 201
    other = spelt.format(upper="SHOP", start="sho", name="shop")
    for below in ("", "/deliveries", "/messages", "/dead-letters"):
        answer = door.web.send(f"{door.path}/consumers/{other}{below}")
        assert (answer.status, answer.code) == (404, "unknown_consumer")


@pytest.mark.trap("ids that match wildcards")
def test_ids_match_exactly(door: Door) -> None:
    number = json.loads(door.publish().body)["id"]
    door.stored.append(SECRET)
    assert door.web.send(f"/api/v1/messages/{number}").status == 200
    for other in (number.upper(), number[:-1] + "_", f"{number}%20", f"0{number}", "%25", "msg_1"):
        assert door.web.send(f"/api/v1/messages/{other}").code == "unknown_message"
    assert ids.from_public(ids.MESSAGE, number) is not None
    for letter in set(string.ascii_lowercase) - set(number):
        assert door.web.send(f"/api/v1/messages/{number[:-1]}{letter}").status == 404


@pytest.mark.trap("ids that match wildcards")
def test_idempotency_keys_match_exactly(door: Door) -> None:
    keys = ["order-1", "ORDER-1", "order-%", "order-_", "order-1 x", "'order-1'", "order-1;--"]
    for status in (202, 200):
        for key in keys:
            answer = door.publish(f"Idempotency-Key: {key}", body=key.encode())
            assert (answer.status, key) == (status, key)
    door.stored.extend(key.encode() for key in keys)
