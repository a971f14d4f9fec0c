"""Choose a message's consumers: all matching ones of a topic, or one of a queue."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from delivery.rules import sharding

QUEUE = "queue"


class Consumer(Protocol):
    """The part of a consumer that the choice needs."""

    @property
    def id(self) -> int: ...
    @property
    def halted(self) -> bool: ...
    def wants(self, event_type: str, /) -> bool: ...


class Channel(Protocol):
    """The part of a channel that the choice needs."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def consumers(self) -> Sequence[Consumer]: ...


class Recipients:
    """Distributes messages during one fan-out transaction.

    A queue's message goes to the consumer with the fewest unfinished deliveries, so a slow consumer
    gets fewer and an idle one gets the next. Halted consumers and failing ones that wait for their
    next probe (S4-24) are skipped, unless there are no others. All messages of an ordering key go
    to the same consumer, halted or not, because two consumers could handle them out of order.
    """

    def __init__(
        self,
        channels: Iterable[Channel],
        unfinished: Callable[[Collection[int]], Mapping[int, int]],
        resting: Callable[[Collection[int]], Collection[int]],
    ) -> None:
        self._channels = {channel.id: channel for channel in channels}
        self._unfinished, self._resting = unfinished, resting
        self._recipients: dict[tuple[int, str], list[Consumer]] = {}
        self._ids: dict[tuple[int, str], list[int]] = {}
        self._open: dict[int, int] = {}
        self._avoided: set[int] = set()

    def of(self, channel_id: int, event_type: str, ordering_key: str) -> list[int]:
        """Return the consumers that get the next message of this kind."""
        kind = channel_id, event_type
        channel = self._channels.get(channel_id)
        if kind not in self._recipients:
            found = [it for it in (channel.consumers if channel else ()) if it.wants(event_type)]
            self._recipients[kind] = found
            self._ids[kind] = [consumer.id for consumer in found]
        if channel is None or channel.kind != QUEUE or not self._ids[kind]:
            return self._ids[kind]
        return [self._one(self._recipients[kind], self._ids[kind], ordering_key)]

    def _one(self, wanting: list[Consumer], ids: list[int], ordering_key: str) -> int:
        if ordering_key:
            owner = sharding.owner(_number(ordering_key), ids)
            assert owner is not None
            return owner
        if not self._open.keys() >= set(ids):
            self._open |= {key: self._open.get(key, n) for key, n in self._unfinished(ids).items()}
            self._avoided.update(self._resting(ids))
        awake = [consumer.id for consumer in wanting if not consumer.halted] or ids
        able = [one for one in awake if one not in self._avoided] or awake
        # Ties go to the one that registered first; any rule works that is the same everywhere.
        chosen = min(able, key=lambda one: (self._open[one], one))
        self._open[chosen] += 1
        return chosen


def _number(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
