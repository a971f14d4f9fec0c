"""Find expired deliveries behind an expired head, so that they end together with it."""

from collections.abc import Iterable
from typing import Any

from channels_app.config_cache import config_cache
from channels_app.models import raw
from delivery.lanes.tables import DELIVERIES, LANES, NEVER, WAITERS
from delivery.rules.lanes import lane_id
from delivery.rules.lifecycle import DeliveryState

MAX_ROWS = 500
"""Waiting deliveries that one transaction checks."""
MAX_LANES = 50
"""Lanes checked at a time, so that each gets a useful share of `MAX_ROWS`."""


def expired_behind(
    heads: Iterable[tuple[int, str]], columns: str, instant: str
) -> list[tuple[Any, ...]]:
    """Lock deliveries behind these heads that expired by ``instant``, and return their ``columns``.

    ``heads`` are consumers and keys. Skips deliveries that other transactions hold; those farther
    back are left to the next claim. The caller finishes them and removes them from their lanes.
    """
    known = config_cache.ordered()
    keys = sorted({lane_id(*head) for head in heads if head[1] and head[0] in known})[:MAX_LANES]
    if not keys:
        return []
    crowded = raw.read(
        f"SELECT id, head_place FROM {LANES} WHERE id IN ({raw.listed(keys)}) AND waiting_count > 0"
    )
    if not crowded:
        return []
    share = MAX_ROWS // len(crowded)
    waiting = raw.union(
        f"SELECT delivery_id FROM {WAITERS} WHERE lane_id = {key:d} "
        f"AND place > {place:d} ORDER BY place LIMIT {share:d}"
        for key, place in crowded
    )
    if not (found := raw.read(waiting)):
        return []
    ids = raw.listed(delivery_id for (delivery_id,) in found)
    return raw.read(
        f"SELECT {columns} FROM {DELIVERIES} WHERE id IN ({ids}) AND state = %s "
        f"AND due_at = %s AND expires_at <= %s{raw.skip_locked()}",
        [DeliveryState.QUEUED.value, NEVER, instant],
    )
