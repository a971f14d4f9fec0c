"""Build and sign the headers of a delivery's request.

``v1`` is HMAC-SHA256 with a shared secret (``whsec_...``); ``v1a`` is Ed25519, whose public key
(``whpk_...``) may be published while the private key (``whsk_...``) never leaves the broker.
"""

import base64
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote

from cryptography import exceptions
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from channels_app.core.encryption import PUBLIC, decode_public_key, decode_secret, encode
from channels_app.core.http import canonical, is_brokers_own

DEAD_LETTER_PREFIX = "Hookstation-Dead-Letter-"
"""Prefix of headers that only the broker sets; producers and consumers may not."""
_UNSAFE = re.compile(r"[^\x20-\x7e]")
_NONE: Mapping[str, str] = MappingProxyType({})
TOLERANCE_S = 300
"""Largest difference of the timestamp to the receiver's clock, as in all official libraries."""


class Envelope(NamedTuple):
    """All values in the headers of one attempt, and created for each (send/call.py)."""

    message_id: str
    """The public id, equal for all attempts; the consumer's idempotency key."""
    timestamp: int
    """Unix seconds of this attempt, as signed."""
    signature: str
    """Tokens of core/signing.py, separated by one space."""
    channel: str
    consumer: str
    priority: int
    attempt: int
    """1 for the first attempt, also after a replay."""
    max_attempts: int
    accepted_at: datetime
    user_agent: str
    content_type: str = ""
    """The producer's; without one the header is omitted."""
    event_type: str = ""
    ordering_key: str = ""
    ack_url: str = ""
    """The URL at which the consumer acknowledges it later."""
    replay: bool = False
    """Whether a person requested this delivery again."""
    test: bool = False
    """Whether this is a sample instead of a message."""
    forwarded: Mapping[str, str] = _NONE
    """The producer's headers, checked by core/http.py when the message was accepted."""
    static: Mapping[str, str] = _NONE
    """The consumer's own headers, checked by the same rules."""


def build(envelope: Envelope) -> list[tuple[str, str]]:
    """Return the headers to send: the consumer's override the producer's, the broker's both.

    Headers of people with a name of the broker's are omitted even if the broker does not send that
    header, so that they cannot claim, for example, a replay.
    """
    headers = _people(envelope) if envelope.forwarded or envelope.static else []
    if envelope.content_type:
        headers.append(("Content-Type", _visible(envelope.content_type)))
    headers += (
        ("User-Agent", _visible(envelope.user_agent)),
        ("webhook-id", envelope.message_id),
        ("webhook-timestamp", str(envelope.timestamp)),
        ("webhook-signature", envelope.signature),
        ("Hookstation-Channel", _visible(envelope.channel)),
        ("Hookstation-Consumer", _visible(envelope.consumer)),
    )
    if envelope.event_type:
        headers.append(("Hookstation-Event-Type", _visible(envelope.event_type)))
    headers += (
        ("Hookstation-Priority", str(envelope.priority)),
        ("Hookstation-Attempt", str(envelope.attempt)),
        ("Hookstation-Max-Attempts", str(envelope.max_attempts)),
        ("Hookstation-Accepted-At", _rfc3339(envelope.accepted_at)),
    )
    if envelope.ordering_key:
        headers.append(("Hookstation-Ordering-Key", _visible(envelope.ordering_key)))
    if envelope.ack_url:
        headers.append(("Hookstation-Ack-Url", envelope.ack_url))
    if envelope.replay:
        headers.append(("Hookstation-Replay", "true"))
    if envelope.test:
        headers.append(("Hookstation-Test", "true"))
    return headers


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


def _people(envelope: Envelope) -> list[tuple[str, str]]:
    people: dict[str, tuple[str, str]] = {}
    for name, value in chain(envelope.forwarded.items(), envelope.static.items()):
        # Except the headers that the broker itself adds to messages on dead-letter channels.
        if not is_brokers_own(name) or name.startswith(DEAD_LETTER_PREFIX):
            # Popped, so that the replacement is placed with its own layer.
            people.pop(canonical(name), None)
            people[canonical(name)] = (name, value)
    return [*people.values()]


# Few distinct values are used again and again.
@lru_cache(maxsize=4096)
def _visible(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    # Ordering keys and content types may contain any text; a line break must not end the header.
    return _UNSAFE.sub(lambda match: quote(match[0]), value)


def _rfc3339(instant: datetime) -> str:
    utc = instant if instant.tzinfo is UTC else instant.astimezone(UTC)
    return f"{utc.isoformat(timespec='milliseconds')[:-6]}Z"


def _token_v1(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    mac = _mac(secret).copy()
    mac.update(_content(message_id, timestamp, b""))
    mac.update(body)
    return "v1," + encode(mac.digest())


@lru_cache(maxsize=1024)
def _mac(secret: bytes) -> hmac.HMAC:
    return hmac.new(secret, digestmod="sha256")


def _content(message_id: str, timestamp: int, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body


# Loading a private key or a secret costs as much as signing with it.
@lru_cache(maxsize=1024)
def _signer(private_key: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(private_key)


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


def _verify_v1a(public: bytes, content: bytes, signatures: str) -> bool:
    key = Ed25519PublicKey.from_public_bytes(public)
    return any(_fits(key, content, signature) for signature in _signatures_v1a(signatures))


def _fits(key: Ed25519PublicKey, content: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, content)
    except exceptions.InvalidSignature:
        return False
    return True


def _signatures_v1a(signatures: str) -> Iterator[bytes]:
    for token in signatures.split(" "):
        version, _, text = token.partition(",")
        if version == "v1a":
            try:
                yield base64.b64decode(text, validate=True)
            except ValueError:
                continue


def _verify_v1(token: str, signatures: str) -> bool:
    expected = token.encode()
    # Every token is compared, so that the time taken does not reveal a near match.
    matches = [hmac.compare_digest(expected, token.encode()) for token in signatures.split(" ")]
    return any(matches)
