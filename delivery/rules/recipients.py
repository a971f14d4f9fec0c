"""Recipients: who gets a message: all of a topic's consumers that want it, or one of a queue's."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from delivery.rules import sharding

QUEUE = "queue"


class Consumer(Protocol):
    """As much of a consumer as the choice needs."""

    @property
    def id(self) -> int: ...
    @property
    def halted(self) -> bool: ...
    def wants(self, event_type: str, /) -> bool: ...


class Channel(Protocol):
    """As much of a channel."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def consumers(self) -> Sequence[Consumer]: ...


class Recipients:
    """Deals messages out, as long as one transaction makes their deliveries.

    A queue's message goes to the consumer that has the fewest unfinished deliveries, so that who
    is slow gets less and who is idle gets the next one. One that fails is passed over until it is
    tried again (S4-24), and a halted one; unless there is no other. The messages of an ordering
    key all go to the same consumer, halted or not: at two of them they would overtake each other.
    """

    def __init__(
        self,
        channels: Iterable[Channel],
        unfinished: Callable[[Collection[int]], Mapping[int, int]],
        resting: Callable[[Collection[int]], Collection[int]],
    ) -> None:
        self._channels = {channel.id: channel for channel in channels}
        self._unfinished, self._resting = unfinished, resting
        self._wanting: dict[tuple[int, str], list[Consumer]] = {}
        self._ids: dict[tuple[int, str], list[int]] = {}
        self._open: dict[int, int] = {}
        self._shunned: set[int] = set()

    def of(self, channel_id: int, event_type: str, ordering_key: str) -> list[int]:
        """The consumers that get the next message of this kind."""
        kind = channel_id, event_type
        channel = self._channels.get(channel_id)
        if kind not in self._wanting:
            found = [it for it in (channel.consumers if channel else ()) if it.wants(event_type)]
            self._wanting[kind] = found
            self._ids[kind] = [consumer.id for consumer in found]
        if channel is None or channel.kind != QUEUE or not self._ids[kind]:
            return self._ids[kind]
        return [self._one(self._wanting[kind], self._ids[kind], ordering_key)]

    def _one(self, wanting: list[Consumer], ids: list[int], ordering_key: str) -> int:
        if ordering_key:
            owner = sharding.owner(_number(ordering_key), ids)
            assert owner is not None
            return owner
        if not self._open.keys() >= set(ids):
            self._open |= {key: self._open.get(key, n) for key, n in self._unfinished(ids).items()}
            self._shunned.update(self._resting(ids))
        awake = [consumer.id for consumer in wanting if not consumer.halted] or ids
        able = [one for one in awake if one not in self._shunned] or awake
        # Of equals the one that registered first: any rule will do that is the same everywhere.
        chosen = min(able, key=lambda one: (self._open[one], one))
        self._open[chosen] += 1
        return chosen


def _number(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
