"""Renew the address at which a consumer's provider calls back; the former one stops at once."""

from channels_app import inbound, stored_config, transactions
from channels_app.errors import Conflict
from channels_app.models import AuditEntry, Consumer
from channels_app.rules import correlation
from channels_app.rules.preconditions import ALWAYS, Precondition
from channels_app.rules.tenants import OPERATOR, Tenant
from channels_app.rules.write_result import WriteResult


def renew(
    channel: str,
    client_id: str,
    *,
    actor: str,
    tenant: Tenant = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[Consumer]:
    """Replace the address.

    Raises NotFound, PreconditionFailed, and Conflict if the consumer has no callback address.
    """
    return transactions.run(lambda: _renew(channel, client_id, actor, tenant, condition, reason))


def _renew(
    channel: str, client_id: str, actor: str, tenant: Tenant, condition: Precondition, reason: str
) -> WriteResult[Consumer]:
    consumer = stored_config.consumer(channel, client_id, tenant=tenant, condition=condition)
    if correlation.of(consumer.ack) is None:
        raise Conflict(
            "no_inbound", "The consumer's ack has no correlation, so it has no inbound address."
        )
    inbound.renew(consumer)
    consumer.save()
    AuditEntry.record(
        actor,
        "consumer.renew_inbound",
        f"consumer:{channel}/{client_id}",
        team_id=consumer.team_id,
        reason=reason,
    )
    return WriteResult(consumer, changed=True)
