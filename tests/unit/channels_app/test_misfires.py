"""Misfires: which missed occurrences a schedule fires after an outage."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import recurrence
from channels_app.core.recurrence import GRACE, MAX_SKIPPED, Timetable, turn
from tests.support.properties import quick

NOW = datetime(2027, 1, 4, 12, tzinfo=UTC)


def fired(every_s: float, late_s: float, misfire: str) -> tuple[list[float], int]:
    """Return the lateness in seconds of each fired occurrence, and the number of missed ones."""
    table = Timetable(every_ms=int(every_s * 1000), start_at=NOW - timedelta(seconds=late_s))
    at: datetime | None = table.start_at
    late, missed = [], 0
    while at is not None and at <= NOW:
        done = turn(at, NOW, misfire, table.after)
        missed += done.missed
        if done.occurrence is not None:
            late.append((NOW - done.occurrence).total_seconds())
        at = done.next_at
    return late, missed


@pytest.mark.parametrize(
    ("misfire", "late", "missed"),
    [
        # An hour's outage, an occurrence every ten minutes: the one that is due now is on time.
        ("fire_once", [600, 0], 5),
        ("fire_all", [3600, 3000, 2400, 1800, 1200, 600, 0], 0),
        ("skip", [0], 6),
    ],
)
def test_misfires_after_an_hour_follow_the_policy(
    misfire: str, late: list[float], missed: int
) -> None:
    assert fired(600, 3600, misfire) == (late, missed)


@pytest.mark.parametrize("misfire", ["fire_once", "fire_all", "skip"])
def test_occurrences_up_to_a_minute_late_are_no_misfires(misfire: str) -> None:
    assert fired(1, 60, misfire) == ([float(late) for late in range(60, -1, -1)], 0)


def test_misfires_of_a_week_are_handled_in_parts() -> None:
    table = Timetable(every_ms=1000, start_at=NOW - timedelta(days=7))
    assert table.start_at is not None
    done = turn(table.start_at, NOW, "skip", table.after)
    assert (done.occurrence, done.missed) == (None, MAX_SKIPPED)
    assert done.next_at == table.start_at + timedelta(seconds=MAX_SKIPPED)


@quick
@given(
    every=st.integers(1, 4000),
    late=st.integers(0, 100_000),
    misfire=st.sampled_from([recurrence.FIRE_ONCE, recurrence.FIRE_ALL, recurrence.SKIP]),
)
def test_each_occurrence_is_fired_or_missed(every: int, late: int, misfire: str) -> None:
    found, missed = fired(every, late, misfire)
    assert len(found) + missed == late // every + 1
    assert found == sorted(found, reverse=True)
    over = [one for one in found if one > GRACE.total_seconds()]
    if misfire == recurrence.SKIP:
        assert not over
    if misfire == recurrence.FIRE_ALL:
        assert not missed
    if misfire == recurrence.FIRE_ONCE:
        assert len(over) == (late > GRACE.total_seconds())


def test_the_last_lines_are_kept_newest_first() -> None:
    recent = [recurrence.line(recurrence.FIRED, NOW, message=f"msg_{n}") for n in range(9, -1, -1)]
    first = recurrence.line(recurrence.MISSED, NOW, occurrence_at=NOW, count=3)
    second = recurrence.line(recurrence.REFUSED, NOW, occurrence_at=NOW, detail="x" * 999)
    kept = recurrence.kept(recent, first, second)
    assert [line["result"] for line in kept[:3]] == ["refused", "missed", "fired"]
    assert len(kept) == recurrence.MAX_KEPT
    assert len(kept[0]["detail"]) == recurrence.MAX_DETAIL_LENGTH


def test_a_key_names_the_occurrence_to_the_millisecond() -> None:
    assert recurrence.key("daily", NOW) == "schedule:daily:1799064000000"
