"""Signatures of the client agree with the reference library's and the broker's."""

import base64
from datetime import UTC, datetime

import pytest
from hookstation_client import SignatureError, sign, verify
from standardwebhooks import Webhook

from delivery.core import signing

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
ID, AT = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
BODIES = ['{"test": 2432232314}', "", "Zoë \U0001f40d"]


def headers_of(body: str | bytes) -> dict[str, str]:
    return {
        "Webhook-Id": ID,
        "Webhook-Timestamp": str(AT),
        "Webhook-Signature": sign(SECRET, ID, AT, body),
    }


def test_signature_is_the_one_of_the_specification() -> None:
    # https://github.com/standard-webhooks/standard-webhooks, the test vector of its libraries.
    assert sign(SECRET, ID, AT, BODIES[0]) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("body", BODIES)
def test_signature_is_the_one_of_the_reference_library(body: str) -> None:
    at = datetime.fromtimestamp(AT, tz=UTC)

    assert sign(SECRET, ID, AT, body) == Webhook(SECRET).sign(ID, at, body)


@pytest.mark.parametrize("body", BODIES)
def test_broker_and_client_sign_alike(body: str) -> None:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    old = base64.b64decode(OTHER.removeprefix("whsec_"))
    headers = headers_of(body)
    rotating = signing.sign([old, key], ID, AT, body.encode())

    assert signing.sign([key], ID, AT, body.encode()) == headers["Webhook-Signature"]
    assert verify(SECRET, headers | {"Webhook-Signature": rotating}, body, now=AT) == ID


def test_binary_body_is_verified() -> None:
    body = b"\xff\x00\xfe"

    assert verify(SECRET, headers_of(body), body, now=AT) == ID


def test_one_of_several_secrets_and_signatures_is_enough() -> None:
    headers = headers_of("x")
    headers["Webhook-Signature"] = f"v1a,abc v1,zzz {headers['Webhook-Signature']}"

    assert verify([OTHER, SECRET], headers, "x", now=AT) == ID


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"Webhook-Signature": "v1,AAAA"}, "No signature matches."),
        ({"Webhook-Signature": "v1,Ω"}, "No signature matches."),
        ({"Webhook-Signature": sign(OTHER, ID, AT, "x")}, "No signature matches."),
        ({"Webhook-Signature": sign(SECRET, ID, AT, "y")}, "No signature matches."),
        ({"Webhook-Id": "msg_other"}, "No signature matches."),
        ({"Webhook-Timestamp": str(AT + 1)}, "No signature matches."),
        ({"Webhook-Timestamp": "soon"}, "webhook-timestamp is not a whole number of seconds."),
        ({"Webhook-Timestamp": str(AT - 301)}, "The timestamp is 301 s off; the limit is 300 s."),
        ({"Webhook-Timestamp": str(AT + 301)}, "The timestamp is -301 s off; the limit is 300 s."),
    ],
)
def test_a_changed_request_is_refused(change: dict[str, str], detail: str) -> None:
    with pytest.raises(SignatureError) as refused:
        verify(SECRET, headers_of("x") | change, "x", now=AT)

    assert str(refused.value) == detail


def test_missing_header_is_named() -> None:
    with pytest.raises(SignatureError, match="webhook-id is missing"):
        verify(SECRET, {}, b"")


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_\N{SNOWMAN}"])
def test_an_invalid_secret_is_an_error(secret: str) -> None:
    with pytest.raises(ValueError, match="The secret is"):
        verify(secret, headers_of("x"), "x", now=AT)
