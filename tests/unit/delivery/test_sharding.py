"""Which pumps serve consumers, depending on the encryption keys that each pump has."""

from hypothesis import given
from hypothesis import strategies as st

from delivery.core.recipients import ConsumerShare, KeyHolder, able, owners, owning_consumer

KEYS = st.frozensets(st.sampled_from("abcd"))
PUMPS = st.lists(st.tuples(KEYS, KEYS), min_size=1, max_size=6).map(
    lambda found: [
        KeyHolder(number, keys, missing - keys) for number, (keys, missing) in enumerate(found)
    ]
)


def pump(generation: int, keys: str, missing: str = "") -> KeyHolder:
    return KeyHolder.of(generation, keys, missing)


def test_a_pump_without_the_active_key_yields_to_one_with_it() -> None:
    assert able([pump(1, "old"), pump(2, "new,old")], "new") == {2}
    assert able([pump(1, "old"), pump(2, "older")], "new") == {1, 2}


def test_a_pump_yields_to_one_with_its_missing_keys() -> None:
    assert able([pump(1, "new", "old"), pump(2, "new,old")], "new") == {2}
    assert able([pump(1, "new", "lost"), pump(2, "new,old")], "new") == {1, 2}


def test_of_two_pumps_with_different_missing_keys_one_stays() -> None:
    assert able([pump(1, "new,a", "b"), pump(2, "new,b", "a")], "new") == {2}


@given(PUMPS)
def test_at_least_one_pump_stays_and_all_agree(pumps: list[KeyHolder]) -> None:
    left = able(pumps, "a")
    assert left
    assert left == able(reversed(pumps), "a")
    assert left <= {one.generation for one in pumps}


@given(st.sets(st.integers(0, 1 << 62), min_size=1, max_size=8), st.integers(1, 4), st.data())
def test_owners_stay_when_another_pump_leaves(
    pumps: set[int], most: int, data: st.DataObject
) -> None:
    before = owners(17, pumps, most)
    gone = data.draw(st.sampled_from(sorted(pumps)))
    after = owners(17, pumps - {gone}, most)
    assert len(before) == len(set(before)) == min(most, len(pumps))
    assert [one for one in before if one != gone] == list(after)[: len(before) - (gone in before)]
    assert before[0] == owning_consumer(17, pumps)


@given(st.integers(1, 1000), st.integers(1, 16))
def test_parts_are_equal_and_complete(total: int, count: int) -> None:
    share = ConsumerShare(0, tuple(range(count)))
    parts = [share.of(total, pump) for pump in range(count)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1
    assert share.of(total, count) == 0
