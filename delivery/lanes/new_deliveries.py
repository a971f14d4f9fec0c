"""Order new messages by acceptance when they join their ordering keys.

This holds however many pumps fan out concurrently: a pump leaves a message for later if another
pump holds an earlier one of the same key.
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
    """Return the messages that may be fanned out now.

    ``passed`` are all ids that were found, including those that another process holds.
    """
    channels = {view.channel_id for view in config_cache.ordered().values()}
    if not channels:
        return messages
    keyed = {it.id for it in messages if it.ordering_key and it.channel_id in channels}
    if not keyed or not (others := set(passed) - {it.id for it in messages}):
        return messages
    # Read after the attempt to lock them: a message fanned out by now already has its place.
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
    """Append new deliveries (id, message, consumer id) to their lanes."""
    ordered = config_cache.ordered()
    if not ordered:
        return Entered()
    mine = [row for row in rows if row[2] in ordered and row[1].ordering_key]
    mine.sort(key=lambda row: acceptance(row[1].id, row[1].accepted_at))
    return enter(
        (NewEntry(key, owner, it.ordering_key, it.due_at) for key, it, owner in mine), clock.now()
    )
