"""Windows of whole hours, and which characters a CSV cell may contain."""

import csv
import io
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract import csv_cells
from pipeline.core import hours

BOUND = datetime(2026, 11, 22, 4, 20, 34, 5, tzinfo=UTC)
USUAL = timedelta(hours=48)
INSTANTS = st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("since", "until", "low", "high"),
    [
        pytest.param(None, None, "2026-11-20T04:00", "2026-11-22T04:00", id="the last two days"),
        pytest.param("2026-11-01", None, "2026-11-01T00:00", "2026-11-22T04:00", id="from a date"),
        pytest.param("2026-11-01", "2026-11-02", "2026-11-01T00:00", "2026-11-02T00:00", id="day"),
        pytest.param("2026-11-21T03:59", None, "2026-11-21T03:00", "2026-11-22T04:00", id="begun"),
        pytest.param(None, "2026-11-21T03:59", "2026-11-19T03:00", "2026-11-21T03:00", id="open"),
        pytest.param(None, "2030-01-01", "2026-11-20T04:00", "2026-11-22T04:00", id="to come"),
        pytest.param(
            "2026-11-21T03:00+02:00", None, "2026-11-21T01:00", "2026-11-22T04:00", id="a zone"
        ),
    ],
)
def test_a_window_has_whole_hours_up_to_the_fence(
    since: str | None, until: str | None, low: str, high: str
) -> None:
    told = hours.window(since, until, BOUND, USUAL)
    assert [f"{at:%Y-%m-%dT%H:%M}" for at in told] == [low, high]


def test_what_is_no_instant_is_refused() -> None:
    assert hours.valid("2026-11-22T04:20:34Z")
    with pytest.raises(ValueError, match="Invalid isoformat"):
        hours.valid("yesterday")


@given(INSTANTS, st.integers(0, 500))
def test_days_are_the_window_in_parts(since: datetime, number: int) -> None:
    since = hours.floor(since)
    until = since + number * hours.HOUR
    days = list(hours.days(since, until))

    assert sum((end - start for start, end in days), timedelta(0)) == until - since
    assert all(start.date() == (end - hours.HOUR).date() for start, end in days)
    assert [end for _, end in days[:-1]] == [start for start, _ in days[1:]]


@given(st.lists(st.integers(0, 40)))
def test_spans_hold_the_same_numbers(numbers: list[int]) -> None:
    found = hours.spans(numbers)

    held = {number for first, last in found for number in range(first, last + 1)}
    assert held == set(numbers)
    assert all(later[0] > sooner[1] + 1 for sooner, later in pairwise(found))


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", '=cmd|"/C calc"!A0']
)
def test_no_cell_is_a_formula(text: str) -> None:
    assert csv_cells.safe(text) == f"'{text}"


@given(st.text())
def test_a_cell_comes_back_from_a_file(text: str) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerow([csv_cells.safe(text), 1])
    (row,) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert row[0].removeprefix("'") == text.removeprefix("'")
    assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_plain_values_stay_as_they_are() -> None:
    assert [csv_cells.safe(value) for value in ("shop", "", 17, -3)] == ["shop", "", 17, -3]
