"""Sign and verify requests by Standard Webhooks 1.0.0.

``v1`` is HMAC-SHA256 with a shared secret (``whsec_...``); ``v1a`` is Ed25519, whose public key
(``whpk_...``) may be published while the private key (``whsk_...``) never leaves the broker.
"""

import base64
import hmac
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from cryptography import exceptions
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from channels_app.rules.secrets import PUBLIC, decode_public_key, decode_secret, encode

TOLERANCE_S = 300
"""Largest difference of the timestamp to the receiver's clock, as in all official libraries."""


class InvalidSignature(Exception):
    """The request was not signed with the secret, was changed, or is too old."""


def sign(secrets: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the ``webhook-signature`` of one attempt: a ``v1`` token for each secret.

    ``secrets`` are decoded bytes, the current one first; two overlap during a rotation.
    ``timestamp`` is the time of this attempt in Unix seconds.
    """
    return " ".join([_token_v1(secret, message_id, timestamp, body) for secret in secrets])


def sign_v1a(private_keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """Do the same as ``sign`` with Ed25519: a ``v1a`` token for each decoded 32-byte key."""
    content = _content(message_id, timestamp, body)
    return " ".join(["v1a," + encode(_signer(key).sign(content)) for key in private_keys])


def verify(
    key: str,
    headers: Mapping[str, str],
    body: bytes,
    now: float,
    tolerance: int = TOLERANCE_S,
) -> None:
    """Check a received request against a ``whsec_...`` (v1) or a ``whpk_...`` (v1a).

    ``now`` is Unix seconds; header names may be in any case. One valid signature is sufficient;
    those of other versions are ignored. Raises InvalidSignature with the reason, and ValueError for
    an invalid key.
    """
    message_id, timestamp, signatures = _webhook_headers(headers)
    if abs(now - timestamp) > tolerance:
        raise InvalidSignature("The timestamp is too far from now.")
    if key.startswith(PUBLIC):
        content = _content(message_id, timestamp, body)
        genuine = _verify_v1a(decode_public_key(key), content, signatures)
    else:
        token = _token_v1(decode_secret(key), message_id, timestamp, body)
        genuine = _verify_v1(token, signatures)
    if not genuine:
        raise InvalidSignature("No signature matches the body and the key.")


# Loading a private key or a secret costs as much as signing with it.
@lru_cache(maxsize=1024)
def _signer(private_key: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(private_key)


@lru_cache(maxsize=1024)
def _mac(secret: bytes) -> hmac.HMAC:
    return hmac.new(secret, digestmod="sha256")


def _webhook_headers(headers: Mapping[str, str]) -> tuple[str, int, str]:
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp = given["webhook-id"], given["webhook-timestamp"]
        signatures = given["webhook-signature"]
    except KeyError as missing:
        raise InvalidSignature(f"The header {missing} is missing.") from None
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 15):
        raise InvalidSignature("The timestamp is not a number of seconds.")
    return message_id, int(timestamp), signatures


def _verify_v1(token: str, signatures: str) -> bool:
    expected = token.encode()
    # Every token is compared, so that the time taken does not reveal a near match.
    matches = [hmac.compare_digest(expected, token.encode()) for token in signatures.split(" ")]
    return any(matches)


def _verify_v1a(public: bytes, content: bytes, signatures: str) -> bool:
    key = Ed25519PublicKey.from_public_bytes(public)
    return any(_fits(key, content, signature) for signature in _signatures_v1a(signatures))


def _signatures_v1a(signatures: str) -> Iterator[bytes]:
    for token in signatures.split(" "):
        version, _, text = token.partition(",")
        if version == "v1a":
            try:
                yield base64.b64decode(text, validate=True)
            except ValueError:
                continue


def _fits(key: Ed25519PublicKey, content: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, content)
    except exceptions.InvalidSignature:
        return False
    return True


def _token_v1(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    mac = _mac(secret).copy()
    mac.update(_content(message_id, timestamp, b""))
    mac.update(body)
    return "v1," + encode(mac.digest())


def _content(message_id: str, timestamp: int, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body
