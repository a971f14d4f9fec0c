"""Manage the address that a consumer's provider calls back, and the secret it signs with (S3-39).

Both are stored encrypted; a digest of the address finds the consumer. The address can be shown
again, since people copy it into their provider's settings.
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
    """The encrypted values of a provider, decrypted."""

    token: str
    """Unguessable last part of the address."""
    secret: str
    """The secret that the provider signs with; '' if it does not sign."""


def opened(consumer: Consumer) -> Opened | None:
    """Decrypt the values of a consumer's provider; None if there are none or they are damaged.

    Raises KeyUnavailable: without the key the values are unknown, and must not be replaced.
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
    """The callback address of the provider; None if it has none or the key is missing."""
    try:
        known = opened(consumer)
    except KeyUnavailable:
        return None
    return f"{conf().public_url}/inbound/{known.token}" if known else None


def called(token: str) -> Consumer:
    """The consumer with this token. Raises NotFound unless its address is in use."""
    alive = Consumer.objects.exclude(state=Consumer.State.RETIRED)
    found = alive.filter(inbound_digest=_digest(token)).first()
    if found is None or correlation.of(found.ack) is None:
        raise NotFound("unknown_address", "There is no inbound address with this token.")
    return found


def store(consumer: Consumer, known: Opened | None) -> bool:
    """Store what was just set: encrypt a secret, and generate an address where one is needed.

    ``known`` has the values stored before. Returns whether they changed. Raises Invalid for a mask
    that stands for no stored secret, and KeyUnavailable.
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
    """Replace the address; the current one stops working at once. The caller saves the consumer.

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
