"""If-Match and If-None-Match: which version a write applies to."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import http
from channels_app.core.http import ALWAYS


@pytest.mark.parametrize(
    ("if_match", "version", "holds"),
    [
        (None, 3, True),
        (None, None, True),
        ('"3"', 3, True),
        ('"3"', 4, False),
        ('"3"', None, False),
        ('"2", "3"', 3, True),
        ('"2","3" ', 3, True),
        ('"3.failing"', 3, True),
        ('"3.failing"', 4, False),
        ('".failing"', 3, False),
        ("*", 3, True),
        ("*", None, False),
        ('W/"3"', 3, False),
        ('"03"', 3, True),
        ('"x"', 3, False),
        ('""', 3, False),
        (f'"{"9" * 30}"', 3, False),
        ('"٣"', 3, ValueError),
        ("3", 3, ValueError),
        ("", 3, ValueError),
        (" ", 3, ValueError),
        ('"3', 3, ValueError),
        ('"3" "4"', 3, ValueError),
        ('w/"3"', 3, ValueError),
    ],
)
def test_if_match(if_match: str | None, version: int | None, holds: object) -> None:
    if holds is ValueError:
        with pytest.raises(ValueError, match="ETags"):
            http.parse(if_match)
    else:
        assert http.parse(if_match).holds(version) is holds


def test_if_none_match_creates_only() -> None:
    condition = http.parse(None, "*")
    assert condition.holds(None)
    assert not condition.holds(1)
    with pytest.raises(ValueError, match="create"):
        http.parse(None, '"3"')


def test_both_together_never_hold() -> None:
    condition = http.parse("*", "*")
    assert not condition.holds(1)
    assert not condition.holds(None)


def test_always_holds() -> None:
    assert ALWAYS.holds(None)
    assert ALWAYS.holds(7)


@given(st.integers(1, 2**63), st.integers(1, 2**63))
def test_an_etag_matches_only_its_version(version: int, other: int) -> None:
    held = http.parse(http.tag(version)).holds(other)
    assert held is (version == other and version < 10**18)


@given(st.text())
def test_no_header_breaks_it(text: str) -> None:
    with contextlib.suppress(ValueError):
        http.parse(text)
