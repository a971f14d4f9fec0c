"""Every status code and every Retry-After value has exactly one interpretation."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.core.outcome import (
    RETRY_AFTER_CAP_S,
    Outcome,
    from_status,
    is_refusal,
    parse_retry_after,
)
from tests.support.properties import quick

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (200, Outcome.DELIVERED),
        (202, Outcome.DELIVERED),
        (204, Outcome.DELIVERED),
        (299, Outcome.DELIVERED),
        (300, Outcome.REDIRECT),
        (302, Outcome.REDIRECT),
        (304, Outcome.REDIRECT),
        (308, Outcome.REDIRECT),
        (400, Outcome.CLIENT_ERROR),
        (401, Outcome.CLIENT_ERROR),
        (404, Outcome.NOT_FOUND),
        (408, Outcome.CLIENT_ERROR),
        (410, Outcome.GONE),
        (429, Outcome.THROTTLED),
        (499, Outcome.CLIENT_ERROR),
        (500, Outcome.SERVER_ERROR),
        (501, Outcome.SERVER_ERROR),
        (502, Outcome.UNAVAILABLE),
        (503, Outcome.UNAVAILABLE),
        (504, Outcome.UNAVAILABLE),
        (507, Outcome.SERVER_ERROR),
        (0, Outcome.PROTOCOL_ERROR),
        (101, Outcome.PROTOCOL_ERROR),
        (600, Outcome.PROTOCOL_ERROR),
        (999, Outcome.PROTOCOL_ERROR),
    ],
)
def test_status_has_its_outcome(code: int, outcome: Outcome) -> None:
    assert from_status(code, oversized=False) is outcome


@quick
@given(st.integers(-1, 1000), st.booleans())
def test_success_is_exactly_2xx_whatever_the_size(code: int, oversized: bool) -> None:
    assert from_status(code, oversized).is_success == (200 <= code <= 299)


@quick
@given(st.integers(-1, 1000))
def test_a_refusal_is_a_4xx_that_is_about_one_message(code: int) -> None:
    is_about_it = 400 <= code <= 499 and code not in {408, 410, 429}
    assert is_refusal(from_status(code, oversized=False), code) == is_about_it


def test_a_cut_answer_matters_only_for_success() -> None:
    assert from_status(200, oversized=True) is Outcome.DELIVERED_OVERSIZED
    assert from_status(500, oversized=True) is Outcome.SERVER_ERROR


def test_only_the_consumers_failures_are_charged() -> None:
    free = {outcome for outcome in Outcome if not outcome.charged}
    assert free == {
        Outcome.DELIVERED,
        Outcome.DELIVERED_OVERSIZED,
        Outcome.INTERRUPTED,
        Outcome.LEASE_EXPIRED,
        Outcome.INTEGRITY_ERROR,
    }


def test_only_overload_slows_down() -> None:
    assert {o for o in Outcome if o.slows_down} == {Outcome.THROTTLED, Outcome.UNAVAILABLE}
    assert {c for c in range(200, 600) if from_status(c, False).slows_down} == {429, 502, 503, 504}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("   ", None),
        ("0", 0.0),
        ("120", 120.0),
        (" 120 ", 120.0),
        ("86400", 86_400.0),
        ("86401", 86_400.0),
        ("9" * 64, RETRY_AFTER_CAP_S),
        ("9" * 65, None),
        ("-1", None),
        ("+1", None),
        ("60.0", 60.0),
        ("90.5", 91.0),
        ("0.001", 1.0),
        ("86400.1", RETRY_AFTER_CAP_S),
        (f"{'9' * 60}.5", RETRY_AFTER_CAP_S),
        ("1.", None),
        (".5", None),
        ("1.5.0", None),
        ("-1.5", None),
        ("².5", None),
        ("1e3", None),
        ("soon", None),
        ("١٢", None),
        ("²", None),
        ("Sun, 01 Mar 2026 12:02:00 GMT", 120.0),
        ("Sunday, 01-Mar-26 12:02:00 GMT", 120.0),
        ("Sun Mar  1 12:02:00 2026", 120.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sun, 01 Mar 2126 11:00:00 GMT", RETRY_AFTER_CAP_S),
        ("Sun, 99 Mar 2026 11:00:00 GMT", None),
        ("Sun, 01 Mar 99999 11:00:00 GMT", None),
        (f"Sun, 01 Mar {'9' * 30} 11:00:00 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 -2359", RETRY_AFTER_CAP_S),
    ],
)
@pytest.mark.trap("a wait in fractions of a second is ignored")
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds
