"""Handover: who waits for a channel's messages takes them in the transaction that stores them.

Delivery, which channels do not know, says who that is (`offer`).
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from channels_app.models import raw


class NewMessage(NamedTuple):
    """A message that is not fanned out yet; instants as text, as they go into its deliveries."""

    id: int
    channel_id: int
    priority: int
    due_at: str
    expires_at: str | None
    event_type: str
    ordering_key: str
    accepted_at: str

    def is_due(self, now: str) -> bool:
        """Whether a delivery of it may go at ``now``."""
        # Accepted means accepted in the past, by the database's clock; ours is a little behind.
        return self.due_at <= max(now, self.accepted_at) and not (
            self.expires_at and self.expires_at <= now
        )


class Taken(Protocol):
    """What one attempt to store messages has given to who waits."""

    @property
    def message_ids(self) -> Collection[int]:
        """Those that are fanned out: nobody else has to be told of them."""


class Taker(Protocol):
    """Somebody who waits for messages of one channel, and waits no more until it is told."""

    channel_id: int

    def take(self, statements: Sequence[raw.Statement], messages: Sequence[NewMessage]) -> Taken:
        """Run the statements, which store these messages of the channel, and fan those out.

        The last thing in its transaction, and perhaps again in another one. Raises what the
        database raises.
        """

    def end(self, taken: Taken | None) -> None:
        """Hear what was committed; None: nothing for this one. Raises nothing."""


def nobody(channel_ids: Collection[int]) -> Taker | None:
    """Nobody waits."""
    return None


offer: Callable[[Collection[int]], Taker | None] = nobody
"""Finds who waits for messages of one of these channels, if anybody does. Asked for each commit."""
