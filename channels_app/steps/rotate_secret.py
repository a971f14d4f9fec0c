"""Rotate a consumer's signing secrets: old ones sign beside the new ones for a while (S0-71)."""

from datetime import timedelta

from channels_app import clock, data_encryption, stored_config, transactions
from channels_app.errors import Invalid
from channels_app.models import AuditEntry, Consumer, ConsumerSecret
from channels_app.rules import fields
from channels_app.rules.fields import Field, InvalidValues
from channels_app.rules.preconditions import ALWAYS, Precondition
from channels_app.rules.tenants import OPERATOR, Tenant
from channels_app.rules.write_result import WriteResult

DEFAULT_OVERLAP_S = 86_400
MAX_OVERLAP_S = 30 * 86_400
MAX_LIVE = 10
"""Signatures in one header: each live secret adds one."""

FIELDS = {"overlap_s": Field(fields.whole(0, MAX_OVERLAP_S), default=DEFAULT_OVERLAP_S)}


def rotate(
    channel: str,
    client_id: str,
    values: dict[str, object],
    *,
    actor: str,
    tenant: Tenant = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[Consumer]:
    """Make a new secret; the current ones stop signing after ``overlap_s`` seconds (0: at once).

    A consumer that is signed for with Ed25519 gets a new pair as well. ``secrets`` holds the new
    ``whsec_...``, which is never shown again. Raises Invalid, NotFound and Stale.
    """
    try:
        overlap_s = fields.clean(FIELDS, values, partial=False)["overlap_s"]
    except InvalidValues as bad:
        raise Invalid.of(bad) from None
    return transactions.run(
        lambda: _rotate(channel, client_id, overlap_s, actor, tenant, condition, reason)
    )


def _rotate(
    channel: str,
    client_id: str,
    overlap_s: int,
    actor: str,
    tenant: Tenant,
    condition: Precondition,
    reason: str,
) -> WriteResult[Consumer]:
    consumer = stored_config.consumer(channel, client_id, tenant=tenant, condition=condition)
    _expire(consumer, overlap_s)
    secret = data_encryption.generate_secret(consumer)
    if "v1a" in consumer.signing:
        data_encryption.generate_key_pair(consumer)
    # The secrets are part of what a consumer is: its version moves, and every process looks again.
    consumer.save()
    AuditEntry.record(
        actor,
        "consumer.rotate_secret",
        f"consumer:{channel}/{client_id}",
        team_id=consumer.team_id,
        reason=reason,
        after={"overlap_s": overlap_s},
    )
    return WriteResult(consumer, changed=True, secrets=(secret,))


def _expire(consumer: Consumer, overlap_s: int) -> None:
    now = clock.now()
    until = now + timedelta(seconds=overlap_s)
    consumer.secrets.filter(expires_at__lte=now).delete()
    consumer.secrets.filter(expires_at=None).update(expires_at=until)
    consumer.secrets.filter(expires_at__gt=until).update(expires_at=until)
    for scheme in ConsumerSecret.Scheme.values:
        ids = consumer.secrets.filter(scheme=scheme).order_by("-id").values_list("id", flat=True)
        ConsumerSecret.objects.filter(id__in=list(ids[MAX_LIVE - 1 :])).delete()
