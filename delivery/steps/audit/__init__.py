"""Audit: read the tables stretch by stretch and note what does not add up. Changes nothing.

Not to be mixed up with the audit trail (AuditEntry), which says what people did.

books, parties = Books(most_ids=20), audit.Parties(grace)
while first <= scope.last:
    with audit.snapshot():
        parties.refresh()
        stretch = audit.next_stretch(scope, first)
        audit.look(books, scope, stretch, parties)
    first = stretch.last + 1
"""

from delivery.rules.accounting import Books
from delivery.steps.audit import attempts, fan_out, late, lost, orphans
from delivery.steps.audit.scope import Parties, Party, Scope, Stretch, snapshot
from delivery.steps.audit.stretches import newest
from delivery.steps.audit.stretches import next_one as next_stretch

__all__ = [
    "Parties",
    "Party",
    "Scope",
    "Stretch",
    "late",
    "look",
    "lost",
    "newest",
    "next_stretch",
    "orphans",
    "snapshot",
]


def look(books: Books, scope: Scope, stretch: Stretch, parties: Parties) -> None:
    """Everything that is asked of one stretch of messages. Inside a snapshot."""
    sums = fan_out.look(books, scope, stretch, parties)
    orphans.look(books, scope, stretch, parties, sums)
    attempts.look(books, scope, stretch)
