"""Pause, resume or retire a consumer; its backlog and its history stay (S0-76)."""

from channels_app import clock, stored_config, transactions
from channels_app.errors import Conflict
from channels_app.models import AuditEntry, Consumer
from channels_app.rules.preconditions import ALWAYS, Precondition
from channels_app.rules.tenants import OPERATOR, Tenant
from channels_app.rules.write_result import WriteResult

State = Consumer.State
MAX_REASON_LENGTH = 200
"""Maximum length of the reason that the consumer's row stores and its page shows."""


def pause(
    channel: str,
    client_id: str,
    *,
    actor: str,
    tenant: Tenant = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[Consumer]:
    """Stop deliveries until the consumer is resumed; new messages wait.

    Raises NotFound, PreconditionFailed, and Conflict for a disabled consumer, which stays disabled.
    """
    return transactions.run(
        lambda: _switch(channel, client_id, State.PAUSED, actor, tenant, condition, reason)
    )


def resume(
    channel: str,
    client_id: str,
    *,
    actor: str,
    tenant: Tenant = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[Consumer]:
    """Deliver again what waits, after a pause or after the broker disabled the consumer.

    Raises NotFound and PreconditionFailed.
    """
    return transactions.run(
        lambda: _switch(channel, client_id, State.ACTIVE, actor, tenant, condition, reason)
    )


def retire(
    channel: str,
    client_id: str,
    *,
    actor: str,
    tenant: Tenant = OPERATOR,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[Consumer]:
    """Unregister the consumer: it gets nothing more, and its history stays.

    Raises NotFound and PreconditionFailed.
    """
    return transactions.run(
        lambda: _switch(channel, client_id, State.RETIRED, actor, tenant, condition, reason)
    )


_ACTIONS = {
    State.PAUSED: "consumer.pause",
    State.ACTIVE: "consumer.resume",
    State.RETIRED: "consumer.retire",
}


def _switch(
    channel: str,
    client_id: str,
    state: State,
    actor: str,
    tenant: Tenant,
    condition: Precondition,
    reason: str,
) -> WriteResult[Consumer]:
    consumer = stored_config.consumer(channel, client_id, tenant=tenant, condition=condition)
    if state == consumer.state:
        return WriteResult(consumer)
    if state == State.PAUSED and consumer.state == State.DISABLED:
        raise Conflict("consumer_disabled", "The consumer is disabled already; resume it first.")
    before = {"state": consumer.state, "state_reason": consumer.state_reason}
    consumer.state = state
    consumer.state_reason = "" if state == State.ACTIVE else reason[:MAX_REASON_LENGTH]
    consumer.state_changed_at = clock.now()
    consumer.save()
    AuditEntry.record(
        actor,
        _ACTIONS[state],
        f"consumer:{channel}/{client_id}",
        team_id=consumer.team_id,
        reason=reason,
        before=before,
        after={"state": consumer.state, "state_reason": consumer.state_reason},
    )
    return WriteResult(consumer, changed=True)
