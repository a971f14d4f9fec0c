"""The order in which new messages join their ordering keys.

It is that of acceptance, however many pumps fan out side by side: who meets a message of which
another pump holds an earlier one of the same key leaves it for later.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from channels_app import clock
from channels_app.config_cache import config_cache
from channels_app.models import Message, raw
from delivery.lanes.entering import Entered, NewEntry, enter
from delivery.rules.lanes import acceptance

MESSAGES = Message._meta.db_table


class Accepted(Protocol):
    """A message that is being fanned out."""

    @property
    def id(self) -> int: ...
    @property
    def channel_id(self) -> int: ...
    @property
    def ordering_key(self) -> str: ...
    @property
    def due_at(self) -> str: ...
    @property
    def accepted_at(self) -> str: ...


M = TypeVar("M", bound=Accepted)


def in_turn(messages: list[M], passed: Sequence[int]) -> list[M]:
    """Those that may be fanned out now.

    ``passed`` are the ids that were looked at, the ones among them that somebody else holds too.
    """
    channels = {view.channel_id for view in config_cache.ordered().values()}
    if not channels:
        return messages
    keyed = {it.id for it in messages if it.ordering_key and it.channel_id in channels}
    if not keyed or not (others := set(passed) - {it.id for it in messages}):
        return messages
    # Read after the attempt to lock them: one that is done by now has its place already.
    rows = raw.read(
        f"SELECT channel_id, ordering_key FROM {MESSAGES} "
        f"WHERE id IN ({raw.listed(sorted(others))}) AND state = %s",
        [Message.State.ACCEPTED.value],
    )
    busy = {(channel_id, key) for channel_id, key in rows if key}
    return [
        it for it in messages if it.id not in keyed or (it.channel_id, it.ordering_key) not in busy
    ]


def new_deliveries(rows: Iterable[tuple[int, Accepted, int]]) -> Entered:
    """Put new deliveries (id, message, consumer id) into their lanes."""
    ordered = config_cache.ordered()
    if not ordered:
        return Entered()
    mine = [row for row in rows if row[2] in ordered and row[1].ordering_key]
    mine.sort(key=lambda row: acceptance(row[1].id, row[1].accepted_at))
    return enter(
        (NewEntry(key, owner, it.ordering_key, it.due_at) for key, it, owner in mine), clock.now()
    )
