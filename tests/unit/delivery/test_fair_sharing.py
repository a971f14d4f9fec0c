"""Fair sharing: claims follow priority across consumers, within limits, and starve none."""

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from delivery.core.recipients import Row, share_out
from tests.support.properties import quick

_ids = itertools.count(1)


def rows(*priorities: int, due: int = 0) -> list[Row]:
    """Return rows of one consumer, each due a moment after the one before."""
    return sorted((-priority, due + n, next(_ids)) for n, priority in enumerate(priorities))


def priorities(chosen: Sequence[Row]) -> list[int]:
    return [-row[0] for row in chosen]


def test_the_highest_priority_goes_first_across_all_consumers() -> None:
    found = {1: rows(0, 0, 9), 2: rows(4, 4), 3: rows(0, 0)}
    chosen = share_out(found, dict.fromkeys(found, 10), (), 3)
    assert {key: priorities(mine) for key, mine in chosen.items()} == {1: [9], 2: [4, 4], 3: []}


def test_within_a_priority_the_longest_due_goes_first() -> None:
    found = {1: rows(4, 4, due=10), 2: rows(4, 4, due=0)}
    chosen = share_out(found, dict.fromkeys(found, 10), (), 3)
    assert (len(chosen[1]), len(chosen[2])) == (1, 2)


def test_a_consumers_limit_leaves_the_rest_to_lower_priorities() -> None:
    found = {1: rows(9, 9, 9), 2: rows(0, 0)}
    chosen = share_out(found, {1: 1, 2: 5}, (), 3)
    assert (priorities(chosen[1]), priorities(chosen[2])) == ([9], [0, 0])


def test_a_partial_share_leaves_out_lower_priorities() -> None:
    found = {1: rows(9, 9, 9), 2: rows(9, 0)}
    chosen = share_out(found, {1: 2, 2: 5}, {1}, 10)
    assert (priorities(chosen[1]), priorities(chosen[2])) == ([9, 9], [9])


def test_the_guard_gives_half_to_the_oldest() -> None:
    old, urgent = rows(0, 0, 0, 0, due=0), rows(*[9] * 4, due=10)
    chosen = share_out({1: old, 2: urgent}, {1: 9, 2: 9}, (), 4, oldest_first=True)
    assert (priorities(chosen[1]), priorities(chosen[2])) == ([0, 0], [9, 9])
    one = share_out({1: old, 2: urgent}, {1: 9, 2: 9}, (), 1, oldest_first=True)
    assert (len(one[1]), len(one[2])) == (1, 0)


@given(
    st.dictionaries(
        st.integers(1, 5),
        st.lists(st.tuples(st.integers(-9, 0), st.integers(0, 20)), max_size=12),
        max_size=5,
    ),
    st.data(),
)
@quick
def test_no_eligible_higher_priority_is_left_out(
    pairs: Mapping[int, Sequence[tuple[int, int]]], data: st.DataObject
) -> None:
    found = {key: sorted((*pair, next(_ids)) for pair in some) for key, some in pairs.items()}
    limits = {key: data.draw(st.integers(1, 6)) for key in found}
    shortened = data.draw(st.sets(st.sampled_from(sorted(found)))) if found else set()
    most = data.draw(st.integers(0, 20))
    chosen = share_out(found, limits, shortened, most)
    taken = [row for mine in chosen.values() for row in mine]
    assert len(taken) == len(set(taken)) <= most
    lowest = max((row[0] for row in taken), default=-9)
    for key, mine in chosen.items():
        assert len(mine) <= limits[key]
        left = sorted(set(found[key]) - set(mine))
        more_urgent = [row for row in left if row[0] < lowest]
        assert not more_urgent or (len(mine) == limits[key] and key not in shortened)
        assert mine == found[key][: len(mine)]
