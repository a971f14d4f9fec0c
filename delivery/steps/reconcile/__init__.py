"""Read the tables range by range and record discrepancies, without changing anything.

The audit trail of people's actions (AuditEntry) is something else.

result, config = Reconciliation(most_ids=20), reconcile.ConfigSnapshot(grace)
while first <= scope.last:
    with transactions.snapshot():
        config.refresh()
        key_range = reconcile.next_key_range(scope, first)
        reconcile.check(result, scope, key_range, config)
    first = key_range.last + 1
"""

from delivery.rules.reconciliation import Reconciliation
from delivery.steps.reconcile import attempts, fan_out, late, lost, orphans
from delivery.steps.reconcile.key_ranges import newest
from delivery.steps.reconcile.key_ranges import next_one as next_key_range
from delivery.steps.reconcile.scope import (
    ConfigSnapshot,
    KeyRange,
    ReconciledConsumer,
    Scope,
)

__all__ = [
    "ConfigSnapshot",
    "KeyRange",
    "ReconciledConsumer",
    "Scope",
    "check",
    "late",
    "lost",
    "newest",
    "next_key_range",
    "orphans",
]


def check(
    result: Reconciliation, scope: Scope, key_range: KeyRange, config: ConfigSnapshot
) -> None:
    """Run all checks on one range of messages. Call this inside a snapshot."""
    sums = fan_out.check(result, scope, key_range, config)
    orphans.check(result, scope, key_range, config, sums)
    attempts.check(result, scope, key_range)
