"""Standard Webhooks 1.0.0: sign and verify with a shared secret (scheme ``v1``, HMAC-SHA256)."""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Iterable, Mapping
from typing import Union

from hookstation_client.errors import SignatureError

TOLERANCE_S = 300
"""How far a timestamp may be off, in seconds, as Standard Webhooks recommends."""

_PREFIX = "whsec_"

Secrets = Union[str, Iterable[str]]


def sign(secret: str, message_id: str, timestamp: int, body: bytes | str) -> str:
    """The signature of a body, as it stands in ``webhook-signature``: ``v1,`` and base64.

    ``secret`` is ``whsec_`` and base64, ``timestamp`` is Unix seconds.
    """
    return _signature(_key(secret), message_id, str(int(timestamp)), _bytes(body))


def verify(
    secret: Secrets,
    headers: Mapping[str, str],
    body: bytes | str,
    *,
    tolerance: int = TOLERANCE_S,
    now: float | None = None,
) -> str:
    """Check that a webhook was signed with the secret, lately; returns its ``webhook-id``.

    ``secret`` may be several, while one replaces another. ``headers`` are those of the request, in
    any spelling, ``body`` its exact bytes. Raises `SignatureError` when no signature matches, or
    the timestamp is more than ``tolerance`` seconds from ``now``.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        message_id = found["webhook-id"]
        timestamp = found["webhook-timestamp"]
        # Bytes: `compare_digest` refuses text beyond ASCII, and the header is a stranger's.
        signatures = found["webhook-signature"].encode(errors="replace").split(b" ")
    except KeyError as missing:
        raise SignatureError(f"The header {missing.args[0]} is missing.") from None
    if not (timestamp.isascii() and timestamp.isdigit()):
        raise SignatureError("webhook-timestamp is no whole number of seconds.")
    distance = (time.time() if now is None else now) - int(timestamp)
    if abs(distance) > tolerance:
        raise SignatureError(f"The timestamp is {distance:.0f} s off; {tolerance} s are allowed.")
    content = _bytes(body)
    for one in [secret] if isinstance(secret, str) else secret:
        expected = _signature(_key(one), message_id, timestamp, content).encode()
        if any(hmac.compare_digest(expected, given) for given in signatures):
            return message_id
    raise SignatureError("No signature matches.")


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    digest = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, "sha256").digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _key(secret: str) -> bytes:
    encoded = secret[len(_PREFIX) :] if secret.startswith(_PREFIX) else secret
    try:
        key = base64.b64decode(encoded + "==")  # Padding that is not needed is skipped.
    except (binascii.Error, ValueError):
        raise ValueError("The secret is no base64 behind `whsec_`.") from None
    if not key:
        # Anybody could sign with it.
        raise ValueError("The secret is empty.")
    return key


def _bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else body
