"""Inbound: the address that a consumer's provider calls back, and what it signs with (S3-39).

Both are sealed; by its digest an address is found. It may be shown again, since people type it into
their provider's pages.
"""

import json
import secrets
from hashlib import sha256
from typing import NamedTuple

from channels_app import data_encryption
from channels_app.conf import conf
from channels_app.errors import Invalid, KeyUnavailable, NotFound
from channels_app.models import Consumer
from channels_app.rules import correlation
from channels_app.rules.encryption import Unreadable
from channels_app.rules.fields import MASK, FieldError, InvalidValues

_TOKEN_BYTES = 24


class Opened(NamedTuple):
    """What of a provider is sealed."""

    token: str
    """The part of the address that nobody can guess."""
    secret: str
    """What it signs with; '' where it does not."""


def opened(consumer: Consumer) -> Opened | None:
    """What is sealed; None without, or when it is damaged.

    Raises KeyUnavailable: without the key nobody knows what is there, and must not replace it.
    """
    sealed = bytes(consumer.inbound_sealed)
    if not sealed:
        return None
    try:
        text = data_encryption.decrypt_for_consumer(consumer.channel_id, consumer.client_id, sealed)
    except KeyUnavailable:
        raise
    except Unreadable:
        return None
    return Opened(**json.loads(text))


def address(consumer: Consumer) -> str | None:
    """Where its provider calls back; None where it does not, or where the key is missing."""
    try:
        known = opened(consumer)
    except KeyUnavailable:
        return None
    return f"{conf().public_url}/inbound/{known.token}" if known else None


def called(token: str) -> Consumer:
    """Whose address ends like this. Raises NotFound for one that is not, or no more, in use."""
    alive = Consumer.objects.exclude(state=Consumer.State.RETIRED)
    found = alive.filter(inbound_digest=_digest(token)).first()
    if found is None or correlation.of(found.ack) is None:
        raise NotFound("unknown_address", "There is no inbound address with this token.")
    return found


def store(consumer: Consumer, known: Opened | None) -> bool:
    """Keep what was just set: an address for who needs one, no secret in the clear.

    ``known`` is what was sealed before. Returns whether anything has changed. Raises Invalid for a
    masked secret that is not stored, and KeyUnavailable.
    """
    setting = correlation.of(consumer.ack)
    if setting is None:
        consumer.inbound_digest, consumer.inbound_sealed = None, b""
        return known is not None
    secret = ""
    if signature := setting["signature"]:
        secret = signature["secret"]
        if secret == MASK:
            if not (known and known.secret):
                fault = FieldError("ack", f"{MASK} keeps a stored secret, but there is none.")
                raise Invalid.of(InvalidValues([fault]))
            secret = known.secret
        masked = {**setting, "signature": {**signature, "secret": MASK}}
        consumer.ack = {**(consumer.ack or {}), "correlation": masked}
    wanted = Opened(known.token if known else secrets.token_urlsafe(_TOKEN_BYTES), secret)
    if wanted != known:
        _keep(consumer, wanted)
    return wanted != known


def renew(consumer: Consumer) -> None:
    """Another address: nobody is heard at the former one any more. The caller saves.

    Raises KeyUnavailable.
    """
    known = opened(consumer)
    _keep(consumer, Opened(secrets.token_urlsafe(_TOKEN_BYTES), known.secret if known else ""))


def _keep(consumer: Consumer, wanted: Opened) -> None:
    plain = json.dumps(wanted._asdict()).encode()
    sealed, _ = data_encryption.encrypt_for_consumer(consumer.channel_id, consumer.client_id, plain)
    consumer.inbound_digest, consumer.inbound_sealed = _digest(wanted.token), sealed


def _digest(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()
