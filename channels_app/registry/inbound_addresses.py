"""Manage the addresses that providers call back, one for each consumer that correlates callbacks.

The address and its provider's secret are stored encrypted; a digest of the address finds the
consumer. The address can be shown again, since people copy it into their provider's settings.
"""

import json
import secrets
from hashlib import sha256
from typing import NamedTuple

from channels_app.access.principal import Principal
from channels_app.conf import conf
from channels_app.core import provider_ids
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import Conflict, FieldError, Invalid, KeyUnavailable, NotFound
from channels_app.core.http import ALWAYS, Precondition
from channels_app.core.values import MASK
from channels_app.database import transactions
from channels_app.models import AuditEntry, Consumer
from channels_app.registry import configuration, data_encryption
from channels_app.registry.resource import WriteResult

_TOKEN_BYTES = 24


class InboundAddress(NamedTuple):
    """The encrypted values of a provider, decrypted."""

    token: str
    """Unguessable last part of the address."""
    secret: str
    """The secret that the provider signs with; '' if it does not sign."""


def load(consumer: Consumer) -> InboundAddress | None:
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
    return InboundAddress(**json.loads(text))


def url(consumer: Consumer) -> str | None:
    """The callback address of the provider; None if it has none or the key is missing."""
    try:
        address = load(consumer)
    except KeyUnavailable:
        return None
    return f"{conf().public_url}/inbound/{address.token}" if address else None


def find_consumer(token: str) -> Consumer:
    """The consumer with this token. Raises NotFound unless its address is in use."""
    alive = Consumer.objects.exclude(state=Consumer.State.RETIRED)
    consumer = alive.filter(inbound_digest=_digest(token)).first()
    if consumer is None or provider_ids.of(consumer.ack) is None:
        raise NotFound("unknown_address", "There is no inbound address with this token.")
    return consumer


def store(consumer: Consumer, stored: InboundAddress | None) -> bool:
    """Store what was just set: encrypt a secret, and generate an address where one is needed.

    ``stored`` has the values stored before. Returns whether they changed. Raises Invalid for a mask
    that stands for no stored secret, and KeyUnavailable.
    """
    setting = provider_ids.of(consumer.ack)
    if setting is None:
        consumer.inbound_digest, consumer.inbound_sealed = None, b""
        return stored is not None
    secret = ""
    if signature := setting["signature"]:
        secret = signature["secret"]
        if secret == MASK:
            if not (stored and stored.secret):
                fault = FieldError("ack", f"{MASK} keeps a stored secret, but there is none.")
                raise Invalid.of([fault])
            secret = stored.secret
        masked = {**setting, "signature": {**signature, "secret": MASK}}
        consumer.ack = {**(consumer.ack or {}), "correlation": masked}
    wanted = InboundAddress(stored.token if stored else _new_token(), secret)
    if wanted != stored:
        _set(consumer, wanted)
    return wanted != stored


def renew(
    channel: str,
    client_id: str,
    *,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> WriteResult[Consumer]:
    """Replace the address.

    Raises NotFound, PreconditionFailed, and Conflict if the consumer has no callback address.
    """
    return transactions.run(lambda: _renew(channel, client_id, principal, condition))


def _renew(
    channel: str, client_id: str, principal: Principal, condition: Precondition
) -> WriteResult[Consumer]:
    consumer = configuration.consumer(channel, client_id, principal, condition)
    if provider_ids.of(consumer.ack) is None:
        raise Conflict(
            "no_inbound", "The consumer's ack has no correlation, so it has no inbound address."
        )
    address = load(consumer)
    _set(consumer, InboundAddress(_new_token(), address.secret if address else ""))
    consumer.save()
    AuditEntry.record(
        principal.actor,
        "consumer.renew_inbound",
        f"consumer:{channel}/{client_id}",
        team_id=consumer.team_id,
        reason=principal.reason,
    )
    return WriteResult(consumer, changed=True)


def _set(consumer: Consumer, wanted: InboundAddress) -> None:
    plain = json.dumps(wanted._asdict()).encode()
    sealed, _ = data_encryption.encrypt_for_consumer(consumer.channel_id, consumer.client_id, plain)
    consumer.inbound_digest, consumer.inbound_sealed = _digest(wanted.token), sealed


def _digest(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()


def _new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)
