"""Consumers found by event type are those whose filters match."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels_app.core import names, subscriptions
from channels_app.core.subscriptions import Subscriptions

WORDS = st.lists(st.sampled_from(["a", "b", "order"]), min_size=1, max_size=3).map(".".join)
PATTERNS = st.one_of(st.just("*"), WORDS, WORDS.map("{}.*".format))


@dataclass(frozen=True)
class One:
    id: int
    event_types: tuple[str, ...]


@settings(max_examples=300, deadline=None)
@given(
    filters=st.lists(st.lists(PATTERNS, max_size=3).map(tuple), max_size=8),
    event_type=st.one_of(st.just(""), WORDS),
)
def test_matching_consumers_are_found_in_order(
    filters: list[tuple[str, ...]], event_type: str
) -> None:
    consumers = [One(number, patterns) for number, patterns in enumerate(filters)]
    expected = [it for it in consumers if names.matches(it.event_types, event_type)]
    assert list(Subscriptions(consumers).matching(event_type)) == expected


def test_few_event_types_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_REMEMBERED", 2)
    found = Subscriptions([One(1, ("order.*",))])
    for number in range(9):
        assert [it.id for it in found.matching(f"order.{number}")] == [1]
        assert len(found._remembered) <= 2
