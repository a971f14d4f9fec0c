"""Renew the address at which a consumer's provider calls back: the former one ends at once."""

from channels_app import held, inbound, transactions
from channels_app.errors import Conflict
from channels_app.models import AuditEntry, Consumer
from channels_app.rules import correlation
from channels_app.rules.conditions import ALWAYS, Condition
from channels_app.rules.registered import Registered
from channels_app.rules.tenants import OPERATOR, Tenant


def renew(
    channel: str,
    client_id: str,
    *,
    actor: str,
    tenant: Tenant = OPERATOR,
    condition: Condition = ALWAYS,
    reason: str = "",
) -> Registered[Consumer]:
    """Make another address. Raises NotFound, Stale, and Conflict where nobody calls back."""
    return transactions.run(lambda: _renew(channel, client_id, actor, tenant, condition, reason))


def _renew(
    channel: str, client_id: str, actor: str, tenant: Tenant, condition: Condition, reason: str
) -> Registered[Consumer]:
    consumer = held.consumer(channel, client_id, tenant=tenant, condition=condition)
    if correlation.of(consumer.ack) is None:
        raise Conflict("no_inbound", "Its ack has no correlation: nobody calls back for it.")
    inbound.renew(consumer)
    consumer.save()
    AuditEntry.record(
        actor,
        "consumer.renew_inbound",
        f"consumer:{channel}/{client_id}",
        team_id=consumer.team_id,
        reason=reason,
    )
    return Registered(consumer, changed=True)
