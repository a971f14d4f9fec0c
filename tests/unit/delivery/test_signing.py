"""The reference library accepts our signatures, but not after a change or when they are old."""

import base64
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from channels_app.core.encryption import (
    decode_secret,
    decode_signing_key,
    new_secret,
    new_signing_key,
)
from delivery.core.signing import InvalidSignature, sign, sign_v1a, verify
from tests.support.properties import quick

# The published vector.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
AT = 1_614_265_330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

PRIVATE = (
    "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8DoQe/884Qvh1w3RjnS8CZZ+TWMJulDV8d3IZkElUxuA=="
)
PUBLIC = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
KEY = decode_signing_key(PRIVATE)


def headers(signature: str, *, at: int = AT, message_id: str = ID) -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": signature,
    }


def v1(body: bytes = BODY, at: int = AT, message_id: str = ID) -> str:
    return sign([decode_secret(SECRET)], message_id, at, body)


def test_the_published_vector() -> None:
    assert v1() == SIGNATURE
    verify(SECRET, headers(SIGNATURE), BODY, now=AT)


@quick
@given(st.text(max_size=200), st.sampled_from(["msg_1", ID]), st.integers(24, 64))
def test_the_reference_library_accepts_what_we_sign(text: str, message_id: str, size: int) -> None:
    now = int(datetime.now(UTC).timestamp())
    body = json.dumps(text).encode()
    current = "whsec_" + base64.b64encode(bytes(range(size))).decode()
    old = new_secret()
    signature = sign([decode_secret(current), decode_secret(old)], message_id, now, body)
    signature += " " + sign_v1a([KEY], message_id, now, body)
    ours = headers(signature, at=now, message_id=message_id)
    for secret in (current, old):
        Webhook(secret).verify(body, ours)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(body, ours)


@quick
@given(st.text(max_size=200))
def test_we_accept_what_the_reference_library_signs(text: str) -> None:
    theirs = Webhook(SECRET).sign(ID, datetime.fromtimestamp(AT, UTC), text)
    assert theirs == v1(text.encode())
    verify(SECRET, headers(theirs), text.encode(), now=AT)


@quick
@given(st.binary(max_size=300))
def test_any_bytes_are_signed_both_ways(body: bytes) -> None:
    signature = f"{v1(body)} {sign_v1a([KEY], ID, AT, body)}"
    verify(SECRET, headers(signature), body, now=AT)
    verify(PUBLIC, headers(signature), body, now=AT)


@pytest.mark.trap("missing authentication and readable secrets")
@pytest.mark.parametrize("key", [SECRET, PUBLIC])
def test_every_part_is_bound_by_the_signature(key: str) -> None:
    signature = f"{v1()} {sign_v1a([KEY], ID, AT, BODY)}"
    verify(key, headers(signature), BODY, now=AT)
    for changed, body in [
        (headers(signature), BODY + b" "),
        (headers(signature), b""),
        (headers(signature, at=AT + 1), BODY),
        (headers(signature, message_id="msg_other"), BODY),
        (headers(signature.swapcase()), BODY),
        (headers(signature.replace("=", "")), BODY),
        (headers(""), BODY),
        (headers("v1, v1a,"), BODY),
        (headers("v1 v1a"), BODY),
        (headers("v1a,!!! v1,!!!"), BODY),
        (headers("v1a,\u00e9 v1,\u00e9"), BODY),
        (headers(signature.replace("v1", "v2")), BODY),
    ]:
        with pytest.raises(InvalidSignature, match="No signature matches"):
            verify(key, changed, body, now=AT)


def test_keys_of_another_kind_or_owner_do_not_fit() -> None:
    only_v1, only_v1a = headers(v1()), headers(sign_v1a([KEY], ID, AT, BODY))
    for key, given_headers in [
        (PUBLIC, only_v1),
        (SECRET, only_v1a),
        (new_secret(), only_v1),
        (new_signing_key()[1], only_v1a),
    ]:
        with pytest.raises(InvalidSignature):
            verify(key, given_headers, BODY, now=AT)


@pytest.mark.parametrize("key", [SECRET, PUBLIC])
def test_during_a_rotation_either_signature_is_accepted(key: str) -> None:
    both_v1 = sign([decode_secret(new_secret()), decode_secret(SECRET)], ID, AT, BODY)
    both_v1a = sign_v1a([decode_signing_key(new_signing_key()[0]), KEY], ID, AT, BODY)
    verify(key, headers(f"{both_v1} {both_v1a}"), BODY, now=AT)


def test_signatures_are_separated_by_one_space() -> None:
    keys = [decode_secret(new_secret()) for _ in range(3)]
    assert re.fullmatch(r"v1,[\w+/]{43}=( v1,[\w+/]{43}=){2}", sign(keys, ID, AT, BODY))
    assert re.fullmatch(r"v1a,[\w+/]{86}==( v1a,[\w+/]{86}==)", sign_v1a([KEY] * 2, ID, AT, BODY))


@pytest.mark.parametrize("drift", [-300, -299, 0, 299, 300])
def test_a_timestamp_within_the_tolerance_is_accepted(drift: int) -> None:
    verify(SECRET, headers(SIGNATURE), BODY, now=AT + drift)


@pytest.mark.parametrize("drift", [-301, 301, 86_400])
def test_a_timestamp_beyond_the_tolerance_is_refused(drift: int) -> None:
    with pytest.raises(InvalidSignature, match="too far"):
        verify(SECRET, headers(SIGNATURE), BODY, now=AT + drift)
    verify(SECRET, headers(SIGNATURE), BODY, now=AT + drift, tolerance=86_400)


def test_verify_of_fifteen_digits_reads_them_as_a_time() -> None:
    latest = {"webhook-timestamp": "9" * 15}
    with pytest.raises(InvalidSignature, match=r"^The timestamp is too far from now\.$"):
        verify(SECRET, headers(SIGNATURE) | latest, BODY, now=AT)
    with pytest.raises(InvalidSignature, match=r"^The timestamp is not a number of seconds\.$"):
        verify(SECRET, headers(SIGNATURE) | {"webhook-timestamp": "0" * 16}, BODY, now=AT)


@pytest.mark.parametrize("key", [SECRET, PUBLIC])
def test_verify_splits_signatures_only_at_spaces(key: str) -> None:
    signature = v1() if key == SECRET else sign_v1a([KEY], ID, AT, BODY)
    with pytest.raises(InvalidSignature, match=r"^No signature matches the body and the key\.$"):
        verify(key, headers(f"v1,other\t{signature}"), BODY, now=AT)
    verify(key, headers(f"v1,other {signature}"), BODY, now=AT)


def test_verify_skips_invalid_base64() -> None:
    signature = sign_v1a([KEY], ID, AT, BODY)
    verify(PUBLIC, headers(f"v1a,? {signature}"), BODY, now=AT)
    spoilt = signature.replace("v1a,", "v1a,?")
    with pytest.raises(InvalidSignature, match="No signature matches"):
        verify(PUBLIC, headers(spoilt), BODY, now=AT)


def test_the_reference_library_has_the_same_tolerance() -> None:
    for minutes, accepted in [(4, True), (6, False)]:
        at = datetime.now(UTC) - timedelta(minutes=minutes)
        ours = headers(v1(at=int(at.timestamp())), at=int(at.timestamp()))
        if accepted:
            Webhook(SECRET).verify(BODY, ours)
        else:
            with pytest.raises(WebhookVerificationError):
                Webhook(SECRET).verify(BODY, ours)


@pytest.mark.parametrize("timestamp", ["", "now", "-1", "1.5", "1e9", "9" * 5000, "\u0661"])
def test_an_invalid_timestamp_is_refused(timestamp: str) -> None:
    with pytest.raises(InvalidSignature, match="not a number"):
        verify(SECRET, headers(SIGNATURE) | {"webhook-timestamp": timestamp}, BODY, now=AT)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header_is_named(name: str) -> None:
    incomplete = headers(SIGNATURE)
    del incomplete[name]
    with pytest.raises(InvalidSignature, match=name):
        verify(SECRET, incomplete, BODY, now=AT)


def test_header_names_may_be_in_any_case() -> None:
    verify(SECRET, {name.title(): v for name, v in headers(SIGNATURE).items()}, BODY, now=AT)


def test_new_secrets_are_random_and_decode() -> None:
    assert len({new_secret() for _ in range(50)}) == 50
    assert len(decode_secret(new_secret())) == 32
    private, public = new_signing_key()
    assert base64.b64decode(private.removeprefix("whsk_"))[32:] == base64.b64decode(
        public.removeprefix("whpk_")
    )
    assert len(decode_signing_key(private)) == 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!",
        "whsec_" + "A" * 28,
        "whsec_" + "A" * 88,
        "whpk_" + "A" * 43 + "=",
        "whsec_\u00e9",
        PRIVATE,
    ],
)
def test_malformed_secrets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be whsec_ and 24 to 64 bytes"):
        decode_secret(text)


@pytest.mark.parametrize("text", ["", "whsk_", "whsk_" + "A" * 43 + "=", PUBLIC, SECRET])
def test_malformed_signing_keys_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be whsk_ and 64 bytes"):
        decode_signing_key(text)


def test_an_invalid_key_is_a_separate_error() -> None:
    with pytest.raises(ValueError, match="must be whpk_ and 32 bytes"):
        verify("whpk_AAAA", headers(SIGNATURE), BODY, now=AT)
