"""An API key grants only its own scopes, and its secret is not stored."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.keys import (
    access_key_id,
    generate,
    generate_sigv4_secret,
    matches,
    parse,
    parse_access_key_id,
)
from tests.support.properties import quick


def test_a_new_key_is_recognised_by_its_digest() -> None:
    key = generate()
    parsed = parse(key.text)
    assert parsed is not None
    key_id, secret = parsed
    assert key_id == key.key_id
    assert len(key.digest) == 64
    assert matches(secret, key.digest)
    assert not matches(secret, generate().digest)


def test_stored_and_printed_keys_do_not_contain_the_secret() -> None:
    key = generate()
    _, secret = parse(key.text) or ("", "")
    assert secret
    assert secret not in key.digest
    assert secret not in key.key_id
    assert secret not in repr(key)


def test_keys_do_not_repeat() -> None:
    keys = [generate() for _ in range(100)]
    assert len({key.key_id for key in keys}) == len({key.digest for key in keys}) == 100


def test_a_single_changed_character_does_not_match() -> None:
    key = generate()
    _, secret = parse(key.text) or ("", "")
    for position, character in enumerate(secret):
        other = "b" if character == "a" else "a"
        assert not matches(secret[:position] + other + secret[position + 1 :], key.digest)


@pytest.mark.parametrize(
    "mangle",
    [
        lambda text: "",
        lambda text: text[:-1],
        lambda text: text + "a",
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text.upper(),
        lambda text: text.replace("hsk_", "sk_"),
        lambda text: text[4:],
        lambda text: text.replace("_", "-"),
        lambda text: text[:-1] + "1",
        lambda text: text[:-1] + "\u00e9",
    ],
)
def test_malformed_keys_are_not_parsed(mangle: object) -> None:
    assert callable(mangle)
    assert parse(mangle(generate().text)) is None


@quick
@given(st.text())
def test_no_text_breaks_parsing_or_matching(text: str) -> None:
    assert parse(text) is None
    assert not matches("secret", text)


def test_an_access_key_id_is_the_keys_id_as_aws_clients_take_it() -> None:
    key_id = generate().key_id
    text = access_key_id(key_id)
    assert re.fullmatch("[A-Z0-9]{20}", text)
    assert parse_access_key_id(text) == key_id
    for wrong in ("", text.lower(), text[:-1], text + "A", "AKIA" + text[4:], text + "\n", "HSAK%"):
        assert parse_access_key_id(wrong) is None, wrong


def test_a_secret_access_key_has_the_length_of_one_of_aws() -> None:
    secrets = {generate_sigv4_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(re.fullmatch("[A-Za-z0-9]{40}", secret) for secret in secrets)
