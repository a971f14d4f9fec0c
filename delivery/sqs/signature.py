"""Verify AWS Signature Version 4 in a request's headers or query string.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from delivery.sqs.errors import SqsError

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
MAX_SKEW = timedelta(minutes=15)
MAX_EXPIRES_S = 7 * 86_400
"""Maximum validity of a presigned request in seconds."""
_STAMP = "%Y%m%dT%H%M%SZ"
_HEADER = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=([^,\s]+)\s*,\s*SignedHeaders=([^,\s]+)\s*,"
    r"\s*Signature=([0-9a-f]{64})"
)
_SECONDS = re.compile(r"[0-9]{1,6}")
_HEX = re.compile(r"[0-9a-f]{64}")
_SPACES = re.compile(r" +")


class Signed(NamedTuple):
    """The signature of a request; nothing in it is trustworthy before `verify`."""

    key_id: str
    date: str
    region: str
    signed_headers: tuple[str, ...]
    signature: str
    stamp: str
    """Time of signing, as ``YYYYMMDDTHHMMSSZ``."""
    expires_s: int | None
    """Validity of a presigned request in seconds; None for a request signed in its headers."""


def read(meta: Mapping[str, Any]) -> Signed:
    """Parse the signature of the request with this WSGI environment. Raises SqsError."""
    query = dict(_pairs(meta))
    if "X-Amz-Signature" in query:
        if query.get("X-Amz-Algorithm") != ALGORITHM:
            raise _incomplete("X-Amz-Algorithm must be AWS4-HMAC-SHA256.")
        expires = query.get("X-Amz-Expires", "")
        if not (_SECONDS.fullmatch(expires) and 1 <= int(expires) <= MAX_EXPIRES_S):
            raise _incomplete(f"X-Amz-Expires must be a number from 1 to {MAX_EXPIRES_S}.")
        return _signed(
            query.get("X-Amz-Credential", ""),
            query.get("X-Amz-SignedHeaders", ""),
            query["X-Amz-Signature"],
            query.get("X-Amz-Date", ""),
            int(expires),
        )
    authorization = meta.get("HTTP_AUTHORIZATION", "")
    if not authorization.startswith("AWS4"):
        detail = "Request is missing Authentication Token"
        raise SqsError("MissingAuthenticationToken", detail)
    match = _HEADER.fullmatch(authorization.strip())
    if match is None:
        raise _incomplete(
            "Authorization needs 'Credential', 'SignedHeaders' and 'Signature' parameters."
        )
    credential, names, given = match.groups()
    return _signed(credential, names, given, meta.get("HTTP_X_AMZ_DATE", ""), None)


def verify(
    signed: Signed, secret: str, meta: Mapping[str, Any], body: bytes, now: datetime
) -> None:
    """Raise SqsError unless ``secret`` signed this request recently.

    The signature includes the hash of the payload, so a changed body is refused as well.
    """
    _check_time(signed, now)
    scope = f"{signed.date}/{signed.region}/{SERVICE}/aws4_request"
    request = _canonical(signed, meta, hashlib.sha256(body).hexdigest())
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"{ALGORITHM}\n{signed.stamp}\n{scope}\n{digest}"
    key = _signing_key(secret, signed.date, signed.region)
    expected = hmac.new(key, text.encode(), "sha256").hexdigest()
    if not hmac.compare_digest(expected, signed.signature):
        raise SqsError(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. "
            "Check your AWS Secret Access Key and signing method.",
        )


def _signed(
    credential: str, names: str, signature: str, stamp: str, expires_s: int | None
) -> Signed:
    parts = credential.split("/")
    if len(parts) != 5 or parts[3:] != [SERVICE, "aws4_request"]:
        raise _incomplete("Credential must be KEY/DATE/REGION/sqs/aws4_request.")
    key_id, date, region, _, _ = parts
    if not stamp.startswith(date + "T"):
        raise _incomplete("The date in Credential does not match X-Amz-Date.")
    if not _HEX.fullmatch(signature):
        raise _incomplete("Signature must have 64 hexadecimal digits.")
    headers = tuple(names.lower().split(";"))
    if "host" not in headers:
        raise SqsError("SignatureDoesNotMatch", "'Host' must be a 'SignedHeader'.")
    return Signed(key_id, date, region, headers, signature, stamp, expires_s)


def _check_time(signed: Signed, now: datetime) -> None:
    try:
        at = datetime.strptime(signed.stamp, _STAMP).replace(tzinfo=UTC)
    except ValueError:
        raise _incomplete("X-Amz-Date must look like 20130524T000000Z.") from None
    if at > now + MAX_SKEW:
        raise SqsError(
            "SignatureDoesNotMatch",
            f"Signature not yet current: {signed.stamp} is still later than "
            f"{(now + MAX_SKEW).strftime(_STAMP)} ({now.strftime(_STAMP)} + 15 min.)",
        )
    good_for = MAX_SKEW if signed.expires_s is None else timedelta(seconds=signed.expires_s)
    if at + good_for < now:
        raise SqsError(
            "SignatureDoesNotMatch",
            f"Signature expired: {signed.stamp} is now earlier than "
            f"{(now - good_for).strftime(_STAMP)} ({now.strftime(_STAMP)} - "
            f"{good_for.total_seconds() / 60:g} min.)",
        )


def _canonical(signed: Signed, meta: Mapping[str, Any], payload_hash: str) -> str:
    # Without this check an attacker could replace an unsigned operation.
    if "HTTP_X_AMZ_TARGET" in meta and "x-amz-target" not in signed.signed_headers:
        raise SqsError("SignatureDoesNotMatch", "'X-Amz-Target' must be a 'SignedHeader'.")
    pairs = sorted(
        (_quoted(name), _quoted(value)) for name, value in _pairs(meta) if name != "X-Amz-Signature"
    )
    return "\n".join(
        (
            meta["REQUEST_METHOD"],
            # Queue URLs have no characters that need quoting.
            quote(meta["PATH_INFO"] or "/", safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in pairs),
            *(f"{name}:{_header(meta, name)}" for name in signed.signed_headers),
            "",
            ";".join(signed.signed_headers),
            payload_hash,
        )
    )


def _pairs(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    return parse_qsl(meta.get("QUERY_STRING", ""), keep_blank_values=True)


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")


def _header(meta: Mapping[str, Any], name: str) -> str:
    key = name.upper().replace("-", "_")
    if key not in {"CONTENT_TYPE", "CONTENT_LENGTH"}:
        key = f"HTTP_{key}"
    return _SPACES.sub(" ", str(meta.get(key, "")).strip())


def _incomplete(detail: str) -> SqsError:
    return SqsError("IncompleteSignature", detail)


@lru_cache(1024)
def _signing_key(secret: str, date: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
