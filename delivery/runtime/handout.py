"""Handout: what several workers ask for at the same time is one claim and one look for bodies."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from channels_app import clock
from channels_app.group_commit import GroupCommit
from delivery import metrics
from delivery.rules.claimed import ClaimedDelivery
from delivery.steps import claim
from delivery.steps.claim import ClaimRequest
from delivery.steps.payloads import Payload, PayloadCache

MAX_ROWS = 200
"""Of several workers in one claim; one of them may ask for more."""


class Share(NamedTuple):
    """What one worker gets."""

    rows: list[ClaimedDelivery]
    payloads: dict[int, Payload]
    """By message, also others'; a large body is left where it is."""
    has_expired: bool
    """Whether the claim met rows whose last instant had passed: perhaps there are others."""
    is_more: bool = False
    """Whether something may be due that it did not get."""


def take(want: ClaimRequest) -> Share:
    """Claim what is due; threads that do it at the same time share a transaction."""
    return _together.run(want, want.limit)


def take_chosen(chosen: list[int], want: ClaimRequest, *, anew: bool = False) -> Share:
    """The same of rows that the caller chose; with ``anew`` also of those that the worker holds."""
    taken = claim.claim_chosen(chosen, want, now=clock.now(), slot=os.getpid(), anew=anew)
    return _shares([taken.rows], taken, [want])[0]


def share(rows: list[ClaimedDelivery], along: Sequence[tuple[Any, ...]], *, is_more: bool) -> Share:
    """The share of one who has claimed these by other means, and read ``along`` of their bodies."""
    ids, shelf = [row.message_id for row in rows], PayloadCache()
    shelf.stock(along, dict.fromkeys(ids, 1))
    return Share(rows, shelf.load(ids) if rows else {}, has_expired=False, is_more=is_more)


def _take(wants: Sequence[ClaimRequest]) -> Sequence[Share]:
    taken = claim.claim(wants, now=clock.now(), slot=os.getpid())
    return _shares(claim.shared(taken.rows, wants), taken, wants)


def _shares(
    shares: list[list[ClaimedDelivery]], taken: claim.Claim, wants: Sequence[ClaimRequest]
) -> list[Share]:
    metrics.SWEEP_ROWS.labels("lease").inc(taken.rescued_count)
    payloads = PayloadCache().load([row.message_id for row in taken.rows]) if taken.rows else {}
    return [
        Share(
            rows,
            payloads,
            has_expired=taken.expired_count > 0,
            is_more=want.consumer_id not in taken.drained,
        )
        for rows, want in zip(shares, wants, strict=True)
    ]


_together = GroupCommit(_take, most=MAX_ROWS, most_size=MAX_ROWS)
