"""Counters of different states have different keys, and keep those of stored rows."""

from delivery.models import counter


def test_each_counted_state_has_a_number_of_its_own() -> None:
    numbers = [counter._key(7, state, 15) >> 4 & 15 for state in counter.COUNTED]
    assert len(set(numbers)) == len(counter.COUNTED)
    assert dict(zip(counter.COUNTED, numbers, strict=True))[counter.MADE] == 6
