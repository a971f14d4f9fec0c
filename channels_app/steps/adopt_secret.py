"""Adopt a signing secret that the consumer's owner chose, as configuration files do (S0-71)."""

from datetime import timedelta

from channels_app import clock, held, sealing, transactions
from channels_app.errors import Invalid
from channels_app.models import AuditEntry, Consumer, ConsumerSecret
from channels_app.rules import secrets
from channels_app.rules.encryption import Unreadable
from channels_app.rules.fields import BadValues, Fault
from channels_app.rules.registered import Registered

OVERLAP_S = 86_400
"""How long the secret that it replaces goes on signing beside it."""


def adopt(
    channel: str, client_id: str, text: str, *, actor: str, overlap_s: int = OVERLAP_S
) -> Registered[Consumer]:
    """Sign with ``text`` (``whsec_...``) from now on; nothing changes when it already does.

    What it replaces stops signing after ``overlap_s`` seconds (0: at once). Raises Invalid and
    NotFound.
    """
    try:
        secret = secrets.decode_secret(text)
    except ValueError as error:
        raise Invalid.of(BadValues([Fault("secret", str(error))])) from None
    return transactions.run(lambda: _adopt(channel, client_id, secret, actor, overlap_s))


def _adopt(
    channel: str, client_id: str, secret: bytes, actor: str, overlap_s: int
) -> Registered[Consumer]:
    consumer = held.consumer(channel, client_id)
    current = list(consumer.secrets.filter(scheme=ConsumerSecret.Scheme.V1, expires_at=None))
    if any(_opened(consumer, row) == secret for row in current):
        return Registered(consumer)
    _expire(current, overlap_s)
    sealed, key_id = sealing.seal_for_consumer(consumer.channel_id, client_id, secret)
    ConsumerSecret.objects.create(consumer=consumer, sealed=sealed, key_id=key_id)
    # The secrets are part of what a consumer is: its version moves, and every process looks again.
    consumer.save()
    AuditEntry.record(
        actor,
        "consumer.adopt_secret",
        f"consumer:{channel}/{client_id}",
        team_id=consumer.team_id,
        after={"overlap_s": overlap_s},
    )
    return Registered(consumer, changed=True)


def _opened(consumer: Consumer, row: ConsumerSecret) -> bytes | None:
    try:
        return sealing.open_for_consumer(consumer.channel_id, consumer.client_id, bytes(row.sealed))
    except Unreadable:
        return None


def _expire(rows: list[ConsumerSecret], overlap_s: int) -> None:
    until = clock.now() + timedelta(seconds=overlap_s)
    for row in rows:
        if overlap_s:
            row.expires_at = until
            row.save()
        else:
            row.delete()
