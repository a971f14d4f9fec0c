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
"""Largest difference of a timestamp in seconds, as Standard Webhooks recommends."""

_PREFIX = "whsec_"

Secrets = Union[str, Iterable[str]]


def sign(secret: str, message_id: str, timestamp: int, body: bytes | str) -> str:
    """Return the signature of a body for ``webhook-signature``: ``v1,`` and base64.

    ``secret`` is ``whsec_`` and base64, ``timestamp`` is in Unix seconds.
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
    """Check the signature and the timestamp of a webhook; return its ``webhook-id``.

    ``secret`` may be several secrets, during a rotation. ``headers`` are those of the request, in
    any letter case, ``body`` its exact bytes. Raises `SignatureError` if no signature matches, or
    if the timestamp differs from ``now`` by more than ``tolerance`` seconds.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        message_id = found["webhook-id"]
        timestamp = found["webhook-timestamp"]
        # Bytes, because `compare_digest` raises for non-ASCII text, which anybody may send.
        signatures = found["webhook-signature"].encode(errors="replace").split(b" ")
    except KeyError as missing:
        raise SignatureError(f"The header {missing.args[0]} is missing.") from None
    if not (timestamp.isascii() and timestamp.isdigit()):
        raise SignatureError("webhook-timestamp is not a whole number of seconds.")
    distance = (time.time() if now is None else now) - int(timestamp)
    if abs(distance) > tolerance:
        raise SignatureError(f"The timestamp is {distance:.0f} s off; the limit is {tolerance} s.")
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
        key = base64.b64decode(encoded + "==")  # Decoding ignores superfluous padding.
    except (binascii.Error, ValueError):
        raise ValueError("The secret is not base64 after `whsec_`.") from None
    if not key:
        # Anybody could sign with an empty key.
        raise ValueError("The secret is empty.")
    return key


def _bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else body
