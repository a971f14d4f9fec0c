"""Signatures of AWS clients, made by botocore's signer."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from delivery.sqs import signature
from delivery.sqs.errors import SqsError

SECRET = "a" * 40
JSON = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}


def environ(request: AWSRequest) -> dict[str, Any]:
    """Return the WSGI environment of a request."""
    address = urlsplit(request.url)
    meta = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": address.path or "/",
        "QUERY_STRING": address.query,
        "HTTP_HOST": address.netloc,
    }
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        meta[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    return meta


def signed(
    body: bytes = b'{"QueueUrl":"x"}',
    url: str = "http://127.0.0.1:8000/",
    headers: Mapping[str, str] = JSON,
    auth: type[SigV4Auth] = SigV4Auth,
    service: str = "sqs",
) -> dict[str, Any]:
    request = AWSRequest("POST", url, headers=dict(headers), data=body)
    auth(Credentials("HSAKAAAAAAAAAAAAAAAA", SECRET), service, "eu-west-1").add_auth(request)
    return environ(request)


def check(
    meta: Mapping[str, Any],
    body: bytes = b'{"QueueUrl":"x"}',
    later: timedelta = timedelta(0),
    **other: str,
) -> None:
    """Verify the signature as if ``later`` had passed since it was made."""
    now = datetime.now(UTC) + later
    signature.verify(signature.read(meta), other.get("secret", SECRET), meta, body, now)


def refusal(meta: Mapping[str, Any], **options: Any) -> str:
    with pytest.raises(SqsError) as refused:
        check(meta, **options)
    return refused.value.name


def test_signatures_of_botocore_are_accepted() -> None:
    check(signed())
    check(signed(url="http://127.0.0.1:8000/000000000000/Orders-1.fifo?b=2&a=%20x&a=1&c"))
    check(signed(body=b"", headers={}), b"")


def test_presigned_urls_of_botocore_are_accepted_until_they_expire() -> None:
    meta = signed(body=b"", headers={}, auth=SigV4QueryAuth)
    check(meta, b"", timedelta(minutes=55))
    assert refusal(meta, body=b"", later=timedelta(hours=2)) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_X_AMZ_TARGET", "AmazonSQS.DeleteQueue"),
        ("HTTP_HOST", "elsewhere.example"),
        ("CONTENT_TYPE", "text/plain"),
        ("PATH_INFO", "/000000000000/orders"),
        ("QUERY_STRING", "a=1"),
        ("REQUEST_METHOD", "GET"),
    ],
)
def test_a_changed_part_of_a_request_is_refused(name: str, value: str) -> None:
    assert refusal(signed() | {name: value}) == "SignatureDoesNotMatch"


def test_a_changed_body_and_another_secret_are_refused() -> None:
    assert refusal(signed(), body=b'{"QueueUrl":"y"}') == "SignatureDoesNotMatch"
    assert refusal(signed(), secret="b" * 40) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("minutes", [-17, 17])
def test_a_clock_more_than_fifteen_minutes_off_is_refused(minutes: int) -> None:
    off = timedelta(minutes=minutes)
    assert refusal(signed(), later=off) == "SignatureDoesNotMatch"
    check(signed(), later=off * 0.8)


def test_an_operation_that_is_not_signed_is_refused() -> None:
    meta = signed(headers={}) | {"HTTP_X_AMZ_TARGET": "AmazonSQS.DeleteQueue"}
    assert refusal(meta) == "SignatureDoesNotMatch"


def test_a_host_that_is_not_signed_is_refused() -> None:
    class Hostless(SigV4Auth):  # type: ignore[misc]  # botocore has no types
        """Signs everything except the host, so that the missing host is the only fault."""

        def headers_to_sign(self, request: AWSRequest) -> Any:
            headers = super().headers_to_sign(request)
            del headers["host"]
            return headers

    assert refusal(signed(auth=Hostless)) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "MissingAuthenticationToken"),
        ("Bearer hsk_aaaaaaaaaaaaaaaa_b", "MissingAuthenticationToken"),
        ("AWS4-HMAC-SHA256 Credential=a", "IncompleteSignature"),
        ("AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host, Signature=0", None),
    ],
)
def test_an_invalid_signature_is_refused(given: str | None, name: str | None) -> None:
    meta = signed()
    del meta["HTTP_AUTHORIZATION"]
    if given is not None:
        meta["HTTP_AUTHORIZATION"] = given
    assert refusal(meta) == (name or "IncompleteSignature")


def test_a_signature_for_another_service_is_refused() -> None:
    assert refusal(signed(service="sns")) == "IncompleteSignature"


@pytest.mark.parametrize("expires", ["0", "604801", "9" * 5000, "x", "-1"])
def test_a_presigned_request_is_valid_for_at_most_a_week(expires: str) -> None:
    meta = signed(body=b"", headers={}, auth=SigV4QueryAuth)
    meta["QUERY_STRING"] = meta["QUERY_STRING"].replace("Expires=3600", f"Expires={expires}")
    assert refusal(meta, body=b"") == "IncompleteSignature"
