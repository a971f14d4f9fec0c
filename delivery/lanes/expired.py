"""Expired: those behind a head that expired, and have expired like it, end together with it."""

from collections.abc import Iterable
from typing import Any

from channels_app.config_cache import config_cache
from channels_app.models import raw
from delivery.lanes.tables import DELIVERIES, LANES, NEVER, WAITERS
from delivery.rules.lanes import lane_id
from delivery.rules.lifecycle import DeliveryState

MAX_ROWS = 500
"""Deliveries behind heads that are looked at in one transaction."""
MAX_LANES = 50
"""Of one look, so that each has a share worth the look."""


def expired_behind(
    heads: Iterable[tuple[int, str]], columns: str, instant: str
) -> list[tuple[Any, ...]]:
    """``columns`` of deliveries that wait behind these heads and expired by ``instant``, locked.

    ``heads`` are consumers and keys. What another one holds is passed over, and what stands
    farther behind is left to the next claim. The caller ends them and lets them leave.
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
