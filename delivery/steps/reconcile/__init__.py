"""Reconcile: read the tables range by range and record discrepancies. Changes nothing.

Not to be mixed up with the audit trail (AuditEntry), which says what people did.

result, parties = Reconciliation(most_ids=20), reconcile.Parties(grace)
while first <= scope.last:
    with audit.snapshot():
        parties.refresh()
        stretch = audit.next_stretch(scope, first)
        audit.look(books, scope, stretch, parties)
    first = stretch.last + 1
"""

from delivery.rules.reconciliation import Reconciliation
from delivery.steps.reconcile import attempts, fan_out, late, lost, orphans
from delivery.steps.reconcile.key_ranges import newest
from delivery.steps.reconcile.key_ranges import next_one as next_key_range
from delivery.steps.reconcile.scope import KeyRange, Parties, Party, Scope, snapshot

__all__ = [
    "KeyRange",
    "Parties",
    "Party",
    "Scope",
    "late",
    "look",
    "lost",
    "newest",
    "next_key_range",
    "orphans",
    "snapshot",
]


def look(result: Reconciliation, scope: Scope, key_range: KeyRange, parties: Parties) -> None:
    """Everything that is asked of one stretch of messages. Inside a snapshot."""
    sums = fan_out.look(result, scope, key_range, parties)
    orphans.look(result, scope, key_range, parties, sums)
    attempts.look(result, scope, key_range)
