"""Leases of pull consumers, and the tokens with which they settle deliveries.

A token identifies row and attempt and carries, signed, what settling needs. Settling is then one
write by primary key without a read.
"""

import base64
import hashlib
import hmac
import struct
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

PREFIX = "lse_"
MAX_WORKER_LENGTH = 64
"""Characters of a worker's name."""
MAX_TOKEN_LENGTH = 1024
"""Characters of a token: up to four bytes for each character of the worker's name, one for the
ordering key's."""
_FIELDS = struct.Struct(">QQIIHQQ")
_SIGNATURE_BYTES = 16
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Lease(NamedTuple):
    """One delivery leased to a pull consumer."""

    delivery_id: int
    consumer_id: int
    attempt: int
    """The fence: a later lease of the delivery has a higher number."""
    failure_count: int
    interruption_count: int
    accepted_at: datetime
    taken_at: datetime
    worker: str
    """The holder's name, chosen by itself; without control characters."""
    ordering_key: str = ""


def to_token(lease: Lease, key: bytes) -> str:
    """Return the lease's token: ``lse_`` and base64url, up to ``MAX_TOKEN_LENGTH``."""
    *numbers, accepted_at, taken_at, worker, ordering_key = lease
    body = _FIELDS.pack(*numbers, _micros(accepted_at), _micros(taken_at))
    body += f"{worker}\0{ordering_key}".encode()
    return PREFIX + base64.urlsafe_b64encode(body + _sign_token(body, key)).decode().rstrip("=")


def from_token(text: str, key: bytes) -> Lease | None:
    """Return the lease of a token; None if ``to_token`` did not write it with this key."""
    digits = text.removeprefix(PREFIX)
    if digits == text or not digits.isascii() or len(text) > MAX_TOKEN_LENGTH:
        return None
    try:
        raw = base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4))
    except ValueError:
        return None
    body, mac = raw[:-_SIGNATURE_BYTES], raw[-_SIGNATURE_BYTES:]
    if len(body) < _FIELDS.size or not hmac.compare_digest(mac, _sign_token(body, key)):
        return None
    *numbers, accepted_us, taken_us = _FIELDS.unpack_from(body)
    worker, _, ordering_key = body[_FIELDS.size :].decode().partition("\0")
    instants = _instant(accepted_us), _instant(taken_us)
    return Lease._make([*numbers, *instants, worker, ordering_key])


def owner_of(consumer_id: int, worker: str) -> int:
    """Return a worker's ``lease_owner``: a negative number, unlike the generations of pumps."""
    name = f"{consumer_id}/{worker}".encode()
    return -(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 2) - 1


def _sign_token(body: bytes, key: bytes) -> bytes:
    # Keyed BLAKE2b is itself a MAC (RFC 7693), at a third of the cost of HMAC-SHA256.
    return hashlib.blake2b(body, key=key, digest_size=_SIGNATURE_BYTES).digest()


def _micros(instant: datetime) -> int:
    return (instant - _UNIX) // _MICROSECOND


def _instant(micros: int) -> datetime:
    return _UNIX + timedelta(microseconds=micros)
