"""Store what pumps learn about consumers' health, and disable consumers automatically."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from django.db import IntegrityError, connection
from django.db.models import F

from channels_app.database import transactions
from channels_app.models import AuditEntry, Consumer
from delivery.core.breaker import Circuit
from delivery.models import ConsumerHealth

CIRCUIT_FIELDS = (
    *("circuit", "consecutive_failures", "opened_count"),
    *("next_probe_at", "slow_until", "failing_since"),
)


def load(consumer_ids: Iterable[int]) -> dict[int, Circuit]:
    """Return the circuits as last saved; a consumer without a row is absent.

    So is one that a person has resumed, or otherwise changed the state of, since its last failure.
    """
    rows = ConsumerHealth.objects.filter(consumer_id__in=list(consumer_ids))
    rows = rows.annotate(changed_at=F("consumer__state_changed_at"))
    return {
        row.consumer_id: Circuit(
            state=row.circuit,
            consecutive_failures=row.consecutive_failures,
            opened_count=row.opened_count,
            next_probe_at=_seconds(row.next_probe_at),
            failing_since=_seconds(row.failing_since),
            slow_until=_seconds(row.slow_until),
        )
        for row in rows
        if row.last_failure_at is None
        or row.changed_at is None
        or row.changed_at <= row.last_failure_at
    }


class HealthFinding(NamedTuple):
    """What a pump has learned about a consumer."""

    consumer_id: int
    circuit: Circuit
    outcome: str
    """Of the last attempt."""
    is_success: bool


def save(findings: Iterable[HealthFinding], now: datetime) -> None:
    """Save circuits, for the next pump of these consumers and for display.

    Consumers that have been deleted are left out.
    """
    ordered = sorted(findings)  # every pump locks the rows in the same order
    try:
        _upsert(ordered, now)
    except IntegrityError:
        ids = [finding.consumer_id for finding in ordered]
        existing = set(Consumer.objects.filter(id__in=ids).values_list("id", flat=True))
        with suppress(IntegrityError):
            _upsert([finding for finding in ordered if finding.consumer_id in existing], now)


def disable(
    consumer_id: int, *, reason: str, now: datetime, active_since: datetime | None = None
) -> bool:
    """Disable a consumer that is gone or has failed for days; its backlog waits (S0-13).

    A consumer that a person activated after ``active_since`` is left active for the same period
    again. Returns whether this call disabled it.
    """
    return transactions.run(lambda: _disable(consumer_id, reason, now, active_since))


def _seconds(instant: datetime | None) -> float | None:
    return None if instant is None else instant.timestamp()


def _upsert(findings: Sequence[HealthFinding], now: datetime) -> None:
    has_target = connection.features.supports_update_conflicts_with_target
    for is_success, at in ((True, "last_success_at"), (False, "last_failure_at")):
        rows = [
            ConsumerHealth(**_values(finding), **{at: now})
            for finding in findings
            if finding.is_success is is_success
        ]
        if not rows:
            continue
        transactions.run(
            partial(
                ConsumerHealth.objects.bulk_create,
                rows,
                update_conflicts=True,
                update_fields=[*CIRCUIT_FIELDS, "last_outcome", at],
                unique_fields=["pk"] if has_target else None,
            )
        )


def _values(finding: HealthFinding) -> dict[str, Any]:
    circuit = finding.circuit
    return {
        "consumer_id": finding.consumer_id,
        "circuit": circuit.state,
        "consecutive_failures": circuit.consecutive_failures,
        "opened_count": circuit.opened_count,
        "next_probe_at": _instant(circuit.next_probe_at),
        "slow_until": _instant(circuit.slow_until),
        "failing_since": _instant(circuit.failing_since),
        "last_outcome": finding.outcome,
    }


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _disable(consumer_id: int, reason: str, now: datetime, active_since: datetime | None) -> bool:
    consumer = Consumer.objects.select_for_update().filter(id=consumer_id).first()
    if consumer is None or consumer.state != Consumer.State.ACTIVE:
        return False
    changed_at = consumer.state_changed_at
    if active_since is not None and changed_at is not None and changed_at > active_since:
        return False
    consumer.state = Consumer.State.DISABLED
    consumer.state_reason = reason[:200]
    consumer.state_changed_at = now
    consumer.save()
    AuditEntry.objects.create(
        actor="broker",
        action="consumer.disable",
        target=f"consumer:{consumer.channel.slug}/{consumer.client_id}",
        team_id=consumer.team_id,
        reason=reason,
        before={"state": "active"},
        after={"state": "disabled"},
    )
    return True
