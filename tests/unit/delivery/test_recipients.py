"""Recipients of a message: all consumers of a topic, one consumer of a queue."""

from collections import Counter as Tally
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from delivery.core.recipients import Recipients


@dataclass(frozen=True)
class One:
    id: int
    halted: bool = False
    likes: str = ""


@dataclass(frozen=True)
class Place:
    id: int
    kind: str
    consumers: tuple[One, ...]

    def wanting(self, event_type: str) -> list[One]:
        return [it for it in self.consumers if it.likes in ("", event_type)]


@dataclass
class World:
    """Channels, and the number of times that the counts were queried."""

    channels: list[Place]
    unfinished: dict[int, int] = field(default_factory=dict)
    resting: frozenset[int] = frozenset()
    asked: int = 0

    def recipients(self) -> Recipients:
        channels = {place.id: place for place in self.channels}
        return Recipients(channels, self.count, self.resting.intersection)

    def count(self, ids: Collection[int]) -> Mapping[int, int]:
        self.asked += 1
        return {key: self.unfinished.get(key, 0) for key in ids}


def deal(world: World, number: int, key: str = "") -> Tally[int]:
    recipients = world.recipients()
    return Tally(one for _ in range(number) for one in recipients.of(1, "x", key))


def test_a_topic_message_goes_to_all_matching_consumers() -> None:
    world = World([Place(1, "topic", (One(1), One(2, halted=True), One(3, likes="y")))])
    assert world.recipients().of(1, "x", "") == [1, 2]
    assert world.recipients().of(1, "y", "key") == [1, 2, 3]
    assert world.recipients().of(2, "x", "") == []
    assert world.asked == 0


def test_a_failing_consumer_is_skipped_unless_no_other_is_available() -> None:
    three = tuple(One(n, halted=n == 3) for n in range(1, 4))
    world = World([Place(1, "queue", three)], resting=frozenset([1]))
    assert deal(world, 6) == {2: 6}
    world.resting = frozenset([1, 2])
    assert deal(world, 6) == {1: 3, 2: 3}
    world.resting = frozenset()
    world.unfinished = {1: 4}
    assert deal(world, 6) == {1: 1, 2: 5}


def test_a_queue_distributes_messages_with_one_query() -> None:
    world = World([Place(1, "queue", tuple(One(n) for n in range(1, 5)))])
    assert set(deal(world, 400).values()) == {100}
    assert world.asked == 1


def test_a_busy_consumer_gets_fewer_messages() -> None:
    world = World([Place(1, "queue", (One(1), One(2)))], {1: 100})
    assert deal(world, 50) == {2: 50}
    assert deal(world, 200) == {1: 50, 2: 150}


def test_a_halted_consumer_is_skipped_unless_all_are() -> None:
    world = World([Place(1, "queue", (One(1, halted=True), One(2)))])
    assert deal(world, 10) == {2: 10}
    world = World([Place(1, "queue", (One(1, halted=True), One(2, halted=True)))])
    assert set(deal(world, 10)) == {1, 2}


def test_a_queue_without_consumers_keeps_the_message() -> None:
    assert deal(World([Place(1, "queue", (One(1, likes="y"),))]), 3) == {}


@given(st.text(min_size=1), st.integers(1, 6), st.integers(0, 5), st.lists(st.integers(0, 9)))
def test_a_key_stays_with_its_consumer(key: str, number: int, off: int, loads: list[int]) -> None:
    consumers = tuple(One(n, halted=n == off) for n in range(number))
    loaded = dict(enumerate(loads))
    (first,) = deal(World([Place(1, "queue", consumers)], loaded), 5, key)
    calm = tuple(One(n) for n in range(number))
    (second,) = deal(World([Place(1, "queue", calm)]), 5, key)
    assert first == second
