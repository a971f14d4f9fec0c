"""Ordering keys that a channel derives: from the body, or one key for all messages."""

import json
from typing import Any

import pytest

from channels_app.core import ordering_key
from channels_app.core.ordering_key import SHARED, Keying


@pytest.mark.seed("S3-46")
@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("user", {"user": "u-1"}, "u-1"),
        ("$.user", {"user": "u-1"}, "u-1"),
        ("order.customer.id", {"order": {"customer": {"id": 7}}}, "7"),
        ("items[0].sku", {"items": [{"sku": "a b"}]}, "a b"),
        ("items[*].sku", {"items": [{}, {"sku": "b"}]}, "b"),
        ('"user-id"', {"user-id": "u-1"}, "u-1"),
        ("n", {"n": 7.0}, "7"),
        ("n", {"n": -0.0}, "0"),
        ("n", {"n": 0.5}, "0.5"),
        ("n", {"n": 10**30}, str(10**30)),
    ],
)
def test_the_path_finds_the_ordering_key(path: str, body: Any, key: str) -> None:
    assert ordering_key.path_fault(path) is None
    assert Keying(path).key(json.dumps(body).encode()) == key


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"\xff\xfe\x00",
        b"[]",
        b"7",
        b"{}",
        b'{"user": null}',
        b'{"user": true}',
        b'{"user": ""}',
        b'{"user": {"id": 1}}',
        b'{"user": [[]]}',
        b'{"user": NaN}',
        b'{"user": 1e999}',
        b'{"user": ' + b"9" * 5000 + b"}",
        b'{"user": ' + b"[" * 100_000,
    ],
    ids=lambda body: repr(body)[:30],
)
def test_a_body_without_the_path_has_no_key(body: bytes) -> None:
    assert Keying("user").key(body) == ""
    assert Keying("user", is_fifo=True).key(body) == SHARED


@pytest.mark.parametrize("user", ["é", "a\nb", "\ud800", "x" * 256])
def test_an_unrepresentable_key_is_hashed(user: str) -> None:
    def key(value: str) -> str:
        return Keying("user").key(json.dumps({"user": value}).encode())

    assert key(user) == key(user)
    assert key(user) != key(user + "!")
    assert key(user).startswith("sha256:")
    assert key(user).isascii()
    assert len(key(user)) <= 255


@pytest.mark.parametrize("path", ["user..id", "[", " ", "join(user)", "[]" * 50, "(" * 200, "$"])
def test_an_invalid_path_is_reported(path: str) -> None:
    assert ordering_key.path_fault(path)


def test_channels_without_key_paths_have_no_keys() -> None:
    assert ordering_key.of("keyed", "") is None
    assert ordering_key.of("keyed", "user") == Keying("user")
    assert ordering_key.of("fifo", "") == Keying(is_fifo=True)
    assert Keying(is_fifo=True).key(b"anything") == SHARED
