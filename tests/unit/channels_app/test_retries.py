"""Retry settings by event type: which entry applies to a message, and what may be configured."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import backoff, consumer_config, names
from channels_app.core.backoff import PRESETS, RetryRule, Steps
from channels_app.core.consumer_config import MAX_KNOWN, ConsumerConfig
from channels_app.serializers.consumers import RetryOverrides
from tests.support.properties import quick
from tests.support.views import consumer_view

NAMES = st.from_regex(r"[ab](\.[ab]){0,2}", fullmatch=True)
PATTERNS = NAMES | NAMES.map(lambda name: f"{name}.*") | st.just("*")
OWN = RetryRule(Steps((7.0,)), 4)
VIEW = consumer_view(retry=OWN)


def entry(*event_types: str, retry: Any = None, max_attempts: int | None = None) -> dict[str, Any]:
    return {"event_types": list(event_types), "retry": retry, "max_attempts": max_attempts}


def view(*entries: dict[str, Any]) -> ConsumerConfig:
    return replace(VIEW, retry_overrides=consumer_config.resolve_overrides(entries, [7], 4))


@pytest.mark.parametrize(
    ("event_type", "rule"),
    [
        ("invoice.paid", RetryRule(PRESETS["once"], 1)),
        ("invoice.line.added", RetryRule(Steps((1.0, 2.0)), 9)),
        ("stock.low", RetryRule(Steps((1.0, 2.0)), 9)),
        ("stock", OWN),
        ("", OWN),
    ],
)
def test_the_first_entry_that_matches_holds(event_type: str, rule: RetryRule) -> None:
    consumer = view(
        entry("invoice.paid", retry="once"),
        entry("invoice.*", "stock.*", retry=[1, 2], max_attempts=9),
        entry("stock.low.*", retry="fast"),
    )
    assert consumer.retry_for(event_type) == rule


def test_an_entry_for_everything_holds_for_messages_without_an_event_type() -> None:
    assert view(entry("*", max_attempts=2)).retry_for("") == RetryRule(OWN.policy, 2)


def test_the_cache_of_event_types_is_bounded() -> None:
    consumer = view(entry("a.*", max_attempts=9))
    for number in range(3 * MAX_KNOWN):
        assert consumer.retry_for(f"a.x{number}").max_attempts == 9
        assert consumer.retry_for(f"b.x{number}") == OWN
    assert consumer.retry_overrides is not None
    assert len(consumer.retry_overrides._rules) <= MAX_KNOWN
    assert consumer == view(entry("a.*", max_attempts=9)), "what is remembered is no setting"


def test_an_entry_inherits_missing_settings() -> None:
    consumer = view(entry("a", max_attempts=9), entry("b", retry="fast"))
    assert consumer.retry_for("a") == RetryRule(OWN.policy, 9)
    assert consumer.retry_for("b") == RetryRule(PRESETS["fast"], 4)


def test_an_entrys_policy_overrides_no_retries() -> None:
    overrides = consumer_config.resolve_overrides(
        [entry("a", max_attempts=9), entry("b", retry=[1], max_attempts=9)], "once", 10
    )
    consumer = replace(VIEW, retry=backoff.resolve_rule("once", 10), retry_overrides=overrides)
    assert consumer.retry.max_attempts == 1
    assert consumer.retry_for("a").max_attempts == 1, "its policy is the consumer's: never"
    assert consumer.retry_for("b") == RetryRule(Steps((1.0,)), 9)


@quick
@given(st.lists(st.lists(PATTERNS, min_size=1, max_size=3), max_size=4), NAMES | st.just(""))
def test_retry_overrides_match_like_subscriptions(
    patterns: list[list[str]], event_type: str
) -> None:
    entries = [entry(*some, max_attempts=100 + place) for place, some in enumerate(patterns)]
    matching = [
        it["max_attempts"] for it in entries if names.matches(it["event_types"], event_type)
    ]
    assert view(*entries).retry_for(event_type).max_attempts == [*matching, OWN.max_attempts][0]


@quick
@given(PATTERNS, PATTERNS, NAMES | st.just(""))
def test_a_pattern_covers_another_if_it_matches_all_that_the_other_does(
    pattern: str, other: str, event_type: str
) -> None:
    if names.covers(pattern, other) and names.matches([other], event_type):
        assert names.matches([pattern], event_type)


@quick
@given(st.lists(st.lists(PATTERNS, min_size=1, max_size=3, unique=True), max_size=4))
def test_accepted_patterns_are_reachable(patterns: list[list[str]]) -> None:
    entries = [entry(*some, max_attempts=100 + place) for place, some in enumerate(patterns)]
    try:
        stored = RetryOverrides().take(entries)
    except ValueError:
        flat = [(place, it) for place, some in enumerate(patterns) for it in some]
        assert any(
            names.covers(before, it) for n, it in flat for place, before in flat if place < n
        )
        return
    for it in stored:
        for pattern in it["event_types"]:
            # No narrower pattern matches a name that ends like this.
            name = pattern.replace("*", "z")
            assert view(*stored).retry_for(name).max_attempts == it["max_attempts"]


def test_stored_overrides_name_each_setting() -> None:
    given = [{"event_types": ["a.*"], "retry": "fast"}, {"event_types": ["*"], "max_attempts": 3.0}]
    assert RetryOverrides().take(given) == [
        entry("a.*", retry="fast"),
        entry("*", max_attempts=3),
    ]


FINE = {"event_types": ["a"], "max_attempts": 1}
BAD: list[tuple[Any, str]] = [
    (None, "A list is needed."),
    (FINE, "A list is needed."),
    ([FINE, {"event_types": ["b"]}], "Entry 2: Give retry, max_attempts or both"),
    ([FINE, {"max_attempts": 1}], "Entry 2: event_types: This field is required."),
    ([FINE, FINE | {"event_types": []}], "Entry 2: event_types: At least one name or pattern"),
    ([FINE, FINE | {"event_types": ["b", "b..c"]}], "Entry 2: event_types: Entry 2: A pattern is"),
    ([FINE, FINE | {"event_types": ["b"] * 2}], "Entry 2: event_types: An entry occurs twice."),
    ([FINE, FINE | {"event_types": "b"}], "Entry 2: event_types: A list is needed."),
    (
        [{"event_types": ["b"], "retry": "often"}],
        "Entry 1: retry: There is no retry preset 'often'",
    ),
    ([{"event_types": ["b"], "retry": []}], "Entry 1: retry: A list of retry delays has 1 to 100"),
    ([FINE | {"max_attempts": 0}], "Entry 1: max_attempts: A whole number from 1 to 1000"),
    ([FINE | {"max_attempts": 1001}], "Entry 1: max_attempts: A whole number from 1 to 1000"),
    ([FINE | {"delay": 1}], "Entry 1: delay: There is no such field"),
    ([FINE, FINE], "An entry occurs twice."),
    ([FINE, FINE | {"max_attempts": 2}], "Entry 2: a of entry 1 matches a first."),
    ([FINE | {"event_types": ["*"]}, FINE], "Entry 2: * of entry 1 matches a first."),
    (
        [FINE | {"event_types": ["o.*"]}, FINE, FINE | {"event_types": ["b", "o.x.*"]}],
        "Entry 3: o.* of entry 1 matches o.x.* first. Put the narrower entry before it.",
    ),
    (
        [FINE | {"event_types": [f"t{n}"]} for n in range(consumer_config.MAX_OVERRIDES + 1)],
        "At most 20 entries are stored.",
    ),
    (
        [FINE | {"event_types": [f"t{n}" for n in range(consumer_config.MAX_PATTERNS + 1)]}],
        "Entry 1: event_types: At most 50 entries are stored.",
    ),
]


@pytest.mark.parametrize(("value", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_an_invalid_list_is_refused_with_its_invalid_entry(value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        RetryOverrides().take(value)


def test_effective_settings_are_described() -> None:
    overrides = [entry("a", retry="once"), entry("b", max_attempts=3)]
    assert consumer_config.effective_overrides(overrides, None, 10) == [
        {"event_types": ["a"], "retry": "once", "max_attempts": 1, "gives_up_after_s": 0.0},
        {"event_types": ["b"], "retry": "exponential", "max_attempts": 3, "gives_up_after_s": 55.0},
    ]
