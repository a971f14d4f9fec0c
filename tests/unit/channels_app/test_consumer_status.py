"""The one-word health status of a consumer, the same in the console, portal and lists."""

from typing import Any

import pytest

from channels_app.core import consumer_config

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "nothing sent yet", "calm"),
    ({"is_pull": True}, "nothing received yet", "calm"),
    ({"ever_succeeded": True}, "healthy", "good"),
    ({"ever_succeeded": True, "ever_failed": True}, "healthy", "good"),
    ({"ever_succeeded": True, "ever_failed": True, "is_failing": True}, "unsteady", "wait"),
    ({"ever_succeeded": True, "ever_failed": True, "is_open": True}, "failing", "bad"),
    # A consumer that never succeeded is not healthy, even while its circuit is closed.
    ({"ever_failed": True}, "failing", "bad"),
    ({"ever_failed": True, "is_failing": True}, "failing", "bad"),
]


@pytest.mark.parametrize(("known", "word", "tone"), CASES)
def test_an_active_consumer(known: dict[str, Any], word: str, tone: str) -> None:
    assert consumer_config.of("active", **{"is_pull": False} | known)[:2] == (word, tone)


@pytest.mark.parametrize(
    ("state", "tone"), [("paused", "wait"), ("disabled", "bad"), ("retired", "wait")]
)
def test_a_retired_or_disabled_consumer_shows_that_first(state: str, tone: str) -> None:
    for known, _, _ in CASES:
        assert consumer_config.of(state, **{"is_pull": False} | known) == (state, tone, state)
