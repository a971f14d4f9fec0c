"""Filters: a consumer gets the event types that it subscribed to, and no similar ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import names
from channels_app.core.names import matches, validate_pattern
from tests.support.properties import quick

NAMES = st.from_regex(r"[a-c_]{1,2}(\.[a-c]{1,2}){0,2}", fullmatch=True)
PATTERNS = NAMES | NAMES.map(lambda name: f"{name}.*") | st.just("*")


@pytest.mark.parametrize(
    ("patterns", "event_type", "wanted"),
    [
        ([], "order.created", True),
        ([], "", True),
        (["*"], "order.created", True),
        (["*"], "", True),
        (["order.created"], "order.created", True),
        (["order.created"], "order.created.eu", False),
        (["order.created"], "order", False),
        (["order.created"], "Order.created", False),
        (["order.created"], "", False),
        (["order.*"], "order.created", True),
        (["order.*"], "order.line.added", True),
        (["order.*"], "order", False),
        (["order.*"], "orders.created", False),
        (["order.*"], "order_x.created", False),
        (["order.*"], "eu.order.created", False),
        (["order.*"], "", False),
        (["order.line.*"], "order.created", False),
        (["order.line.*"], "order.line.added", True),
        (["invoice.*", "order.created"], "order.created", True),
        (["invoice.*", "order.created"], "order.deleted", False),
        ([""], "", False),
    ],
)
def test_subscriptions_match_event_types(
    patterns: list[str], event_type: str, wanted: bool
) -> None:
    assert matches(patterns, event_type) is wanted


@quick
@given(st.lists(PATTERNS, min_size=1, max_size=4), NAMES)
def test_patterns_match_their_event_types(patterns: list[str], event_type: str) -> None:
    words = event_type.split(".")
    above = {".".join(words[:depth]) + ".*" for depth in range(1, len(words))}
    assert matches(patterns, event_type) is bool({event_type, "*", *above} & set(patterns))


@quick
@given(st.lists(PATTERNS, max_size=4), PATTERNS, NAMES)
def test_another_pattern_never_reduces_matches(
    patterns: list[str], more: str, event_type: str
) -> None:
    if patterns and matches(patterns, event_type):
        assert matches([*patterns, more], event_type)


@quick
@given(PATTERNS)
def test_good_patterns_are_accepted(pattern: str) -> None:
    assert validate_pattern(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    ["", ".*", "**", "*.*", "order*", "order.", "order.*.created", "order.**", "order.* ", "a-b.*"],
)
def test_bad_patterns_are_refused(pattern: str) -> None:
    assert (validate_pattern(pattern) or "").endswith(".")


@quick
@given(st.text("ab.*", max_size=8))
def test_a_good_pattern_can_match_something(pattern: str) -> None:
    if validate_pattern(pattern) is None:
        example = "a.b" if pattern == "*" else pattern.replace("*", "x")
        assert names.event_type(example) is None
        assert matches([pattern], example)
