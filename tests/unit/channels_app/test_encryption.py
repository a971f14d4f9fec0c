"""An encrypted value can be decrypted only in its own row and with its own key."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.encryption import Changed, Keyring, Unreadable, generate_key
from tests.support.properties import quick

OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
RING = Keyring.from_texts([NEW, OLD])
ROW = b"message:1"


@quick
@given(st.binary(max_size=2000), st.binary(max_size=50))
def test_encrypted_data_decrypts(plain: bytes, aad: bytes) -> None:
    envelope = RING.encrypt(plain, aad)
    assert RING.open(envelope, aad) == plain
    assert RING.key_id(envelope) == RING.primary_id
    assert len(envelope) == len(plain) + 33


@quick
@given(st.binary(max_size=2000))
def test_plain_envelopes_open_in_any_row(data: bytes) -> None:
    envelope = RING.plain(data)
    assert RING.open(envelope, ROW) == data
    assert RING.key_id(envelope) == ""


@quick
@given(st.binary(max_size=2000), st.binary(max_size=50))
def test_digested_data_is_plain_and_bound_to_its_row(data: bytes, aad: bytes) -> None:
    envelope = RING.digested(data, aad)
    assert RING.open(envelope, aad) == data
    assert envelope.endswith(data)
    assert RING.key_id(envelope) == RING.primary_id
    with pytest.raises(Changed):
        RING.open(envelope, aad + b"2")
    with pytest.raises(Unreadable, match="is not installed"):
        Keyring.from_texts([OLD]).open(envelope, aad)


def test_row_binding_is_unambiguous() -> None:
    envelope = RING.digested(b"2 x", b"row:1")
    with pytest.raises(Changed):
        RING.open(envelope[:-3] + b" x", b"row:12")


@quick
@given(st.binary(max_size=100), st.booleans(), st.data())
def test_a_changed_bit_is_detected(plain: bytes, sealed: bool, data: st.DataObject) -> None:
    envelope = bytearray((RING.encrypt if sealed else RING.digested)(plain, ROW))
    # Except the bit that makes it a plain envelope: the row's key id reveals that change.
    bit = data.draw(st.integers(0, len(envelope) * 8 - 1).filter(lambda bit: bit != 1 - sealed))
    envelope[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Unreadable):
        RING.open(bytes(envelope), ROW)


@quick
@given(st.binary(max_size=100), st.data())
def test_a_truncated_envelope_is_detected(plain: bytes, data: st.DataObject) -> None:
    envelope = data.draw(st.sampled_from([RING.encrypt, RING.digested]))(plain, ROW)
    size = data.draw(st.integers(0, len(envelope) - 1))
    with pytest.raises(Unreadable):
        RING.open(envelope[:size], ROW)


@quick
@given(st.binary())
def test_no_bytes_break_opening(envelope: bytes) -> None:
    if envelope[:1] != b"\0":
        with pytest.raises(Unreadable):
            RING.open(envelope, ROW)


def test_an_envelope_does_not_open_in_another_row() -> None:
    with pytest.raises(Unreadable, match="belongs to another row"):
        RING.open(RING.encrypt(b"body", ROW), b"message:2")


def test_the_plain_text_is_not_in_the_envelope() -> None:
    plain = b"account 12345678"
    assert plain not in RING.encrypt(plain, ROW)
    assert RING.encrypt(plain, ROW) != RING.encrypt(plain, ROW)


def test_after_a_rotation_the_old_key_still_decrypts() -> None:
    before = Keyring.from_texts([OLD]).encrypt(b"body", ROW)
    assert RING.open(before, ROW) == b"body"
    assert RING.key_id(before) != RING.primary_id
    assert RING.primary_id == hashlib.sha256(bytes([2]) * 32).hexdigest()[:8]


def test_a_missing_key_is_named() -> None:
    envelope = RING.encrypt(b"body", ROW)
    with pytest.raises(Unreadable, match=RING.primary_id):
        Keyring.from_texts([OLD]).open(envelope, ROW)


def test_a_derived_keyring_is_the_same_in_every_process_and_no_other() -> None:
    envelope = Keyring.from_texts([], ["secret"]).encrypt(b"body", ROW)
    assert Keyring.from_texts([], ["secret"]).open(envelope, ROW) == b"body"
    with pytest.raises(Unreadable):
        Keyring.from_texts([], ["Secret"]).open(envelope, ROW)


def test_generated_keys_are_usable_and_random() -> None:
    keys = {generate_key() for _ in range(20)}
    assert len(keys) == 20
    ring = Keyring.from_texts(sorted(keys))
    assert ring.open(ring.encrypt(b"body", ROW), ROW) == b"body"


def test_a_key_may_be_listed_twice() -> None:
    assert Keyring.from_texts([NEW, NEW]).primary_id == RING.primary_id


@pytest.mark.parametrize(
    "text", ["", "short", NEW[:-1], NEW + "=", NEW + "A", " " + NEW, "\u00e9" * 44, "A" * 24]
)
def test_an_invalid_key_is_named_by_position_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="Encryption key 2 is not base64 of 32 bytes") as caught:
        Keyring.from_texts([NEW, text])
    assert not text or text not in str(caught.value)


def test_a_keyring_needs_complete_keys() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Keyring.from_texts([])
    with pytest.raises(ValueError, match="32 bytes"):
        Keyring([bytes(32), b"short"])


def test_two_keys_with_one_id_are_refused() -> None:
    # Found by search: the SHA-256 digests of these keys begin with the same four bytes.
    twins = [number.to_bytes(32, "big") for number in (50_323, 54_260)]
    with pytest.raises(ValueError, match="the same id"):
        Keyring(twins)
