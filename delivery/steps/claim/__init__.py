"""Claim: take due deliveries of chosen consumers under a lease, in index order (S0-34, S0-40).

One short range per consumer and priority level finds candidates without locking anything; only
those rows are then locked, by primary key. A consumer that may not be called now is never read,
so its pile costs its neighbours nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from channels_app import failpoints, transactions
from channels_app.models import new_id
from delivery.rules.fair_sharing import LEVELS
from delivery.steps.claim.candidates import TABLE, Candidates, ClaimRequest, candidates_sql, choose
from delivery.steps.claim.taking import Claim, ClaimContext, shared, take

__all__ = [
    "CONSUMERS_PER_QUERY",
    "TABLE",
    "Claim",
    "ClaimRequest",
    "candidates_sql",
    "claim",
    "claim_chosen",
    "shared",
]
T = TypeVar("T")

IMMEDIATELY = timedelta(0)
CONSUMERS_PER_QUERY = 40
"""SQLite allows 500 terms of a union; 10 levels each."""


def claim(
    wants: Sequence[ClaimRequest],
    *,
    now: datetime,
    slot: int,
    ahead: timedelta = IMMEDIATELY,
    most: int | None = None,
) -> Claim:
    """Lease due rows: ``in_flight``, ``attempt_count`` + 1, ``due_at`` at the lease's end.

    ``slot`` is the caller's share of the counters. Rows that another worker holds
    are skipped, never waited for. What waits and is due within ``ahead`` is claimed too, for a
    worker that keeps it until then (``ClaimedDelivery.due_at``); no lease ends sooner by it. Of
    several requests of one consumer the first is served first; `shared` tells what is whose.
    ``most`` limits what `CONSUMERS_PER_QUERY` of them get together: then the highest priority goes
    first across consumers, too (`rules.fair_sharing`).
    """
    holding = ClaimContext(wants, now, slot, ahead)
    parts = [_claim_group(group, holding, most) for group in _groups(_merged(wants))]
    return Claim(
        rows=[row for part in parts for row in part.rows],
        expired_count=sum(part.expired_count for part in parts),
        rescued_count=sum(part.rescued_count for part in parts),
        drained=frozenset[int]().union(*(part.drained for part in parts)),
        left={key: due for part in parts for key, due in part.left.items()},
    )


def claim_chosen(
    chosen: list[int], want: ClaimRequest, *, now: datetime, slot: int, anew: bool = False
) -> Claim:
    """The same for rows of one consumer that the caller chose among those that are due.

    With ``anew`` what the owner itself holds is taken, too, as if its lease had lapsed.
    """
    if not chosen:
        return Claim([])
    choice = Candidates({want.consumer_id: chosen}, {}, frozenset())
    return _take(choice, ClaimContext([want], now, slot, IMMEDIATELY, want.owner if anew else None))


def _claim_group(wants: Sequence[ClaimRequest], holding: ClaimContext, most: int | None) -> Claim:
    choice = choose(wants, holding.now + holding.ahead, most)
    taken = _take(choice, holding) if choice.first else Claim([])
    return replace(taken, drained=choice.drained, left=choice.left)


def _take(choice: Candidates, holding: ClaimContext) -> Claim:
    part = transactions.run(lambda: take(choice, holding), on_collision=new_id.reseed)
    failpoints.reach("after_claim")
    return part


def _merged(wants: Sequence[ClaimRequest]) -> Sequence[ClaimRequest]:
    """One for each consumer."""
    by_consumer: dict[int, ClaimRequest] = {}
    for want in wants:
        known = by_consumer.get(want.consumer_id)
        by_consumer[want.consumer_id] = (
            replace(
                want,
                limit=known.limit + want.limit,
                spare=known.spare + want.spare,
                oldest_first=known.oldest_first or want.oldest_first,
                levels=LEVELS,
            )
            if known
            else want
        )
    return list(by_consumer.values())


def _groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), CONSUMERS_PER_QUERY):
        yield items[start : start + CONSUMERS_PER_QUERY]
