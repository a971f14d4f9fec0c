"""Find the consumers of a channel that want an event type."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Generic, Protocol, TypeVar

from channels_app.core import names

MAX_REMEMBERED = 1_000
"""Event types whose consumers a channel remembers. A producer may use any number of them."""


class Subscriber(Protocol):
    """The part of a consumer that the search needs."""

    @property
    def event_types(self) -> Sequence[str]:
        """Its filter: patterns as `names.matches` reads them."""


S = TypeVar("S", bound=Subscriber)


class Subscriptions(Generic[S]):
    """A channel's consumers by their filters.

    The time of a search depends on the consumers that it finds, not on all of the channel. Results
    are remembered, since most messages have one of a few event types. Threads share it.
    """

    def __init__(self, consumers: Iterable[S]) -> None:
        self.consumers = tuple(consumers)
        self._places: dict[str, list[int]] = {}
        """Places in ``consumers`` by pattern."""
        self._remembered: dict[str, Sequence[S]] = {}
        for place, consumer in enumerate(self.consumers):
            for pattern in dict.fromkeys(consumer.event_types or (names.EVERYTHING,)):
                self._places.setdefault(pattern, []).append(place)

    def matching(self, event_type: str) -> Sequence[S]:
        """Return the consumers whose filter matches, in the order in which they were given."""
        consumers = self._remembered.get(event_type)
        if consumers is None:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            consumers = self._remembered[event_type] = self._search(event_type)
        return consumers

    def _search(self, event_type: str) -> Sequence[S]:
        patterns = names.patterns_of(event_type)
        groups = [places for pattern in patterns if (places := self._places.get(pattern))]
        places = groups[0] if len(groups) == 1 else sorted(set(chain.from_iterable(groups)))
        if len(places) == len(self.consumers):
            return self.consumers
        return [self.consumers[place] for place in places]
