"""Put the head of a paused ordering key back to wait, ahead of all others of its key."""

from collections.abc import Mapping
from datetime import datetime

from channels_app.models import raw
from delivery.lanes.tables import DELIVERIES, LANES, NEVER, WAITERS, lengthen, lock
from delivery.models import LaneWaiter

FIRST = raw.Insert(LaneWaiter, numbers=("delivery_id", "lane_id", "place"), values=("due_at",))


def step_back(heads: Mapping[int, int], now: datetime) -> set[int]:
    """Put heads of paused lanes back to wait, and return those; ``heads`` maps them to lanes.

    The caller has locked the deliveries, and sets them to queued before its transaction ends. Their
    lanes then have no head until they are resumed.
    """
    lanes = lock(heads.values())
    back = {
        key: lane.id
        for key, lane in ((key, lanes.get(lane)) for key, lane in heads.items())
        if lane is not None and lane.is_paused and lane.head_id == key
    }
    if not back:
        return set()
    keys, ids = raw.listed(sorted(back.values())), raw.listed(sorted(back))
    places = dict(raw.read(f"SELECT id, head_place FROM {LANES} WHERE id IN ({keys})"))
    dues = dict(raw.read(f"SELECT id, CAST(due_at AS CHAR) FROM {DELIVERIES} WHERE id IN ({ids})"))
    raw.execute_all(
        [
            (f"DELETE FROM {WAITERS} WHERE delivery_id IN ({ids})", []),
            *FIRST.statements(
                ((key, lane, places[lane]), (dues[key],)) for key, lane in back.items()
            ),
            (
                f"UPDATE {LANES} SET head_id = NULL, head_place = head_place - 1, head_at = %s, "
                f"blocked_at = NULL WHERE id IN ({keys})",
                [raw.text(now)],
            ),
            lengthen(1, list(back.values()), 0),
            (f"UPDATE {DELIVERIES} SET due_at = %s WHERE id IN ({ids})", [NEVER]),
        ]
    )
    return set(back)
