"""Timetables: occurrences at the right instants, on days when clocks change too."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import recurrence
from channels_app.core.recurrence import Timetable
from tests.support.properties import quick

MINUTE = timedelta(minutes=1)
CHANGES = {
    # forward at 02:00, back at 03:00
    "Europe/Paris": (datetime(2027, 3, 28), datetime(2027, 10, 31)),
    "America/New_York": (datetime(2027, 3, 14), datetime(2027, 11, 7)),
    # by half an hour
    "Australia/Lord_Howe": (datetime(2027, 10, 3), datetime(2027, 4, 4)),
    # at 02:45
    "Pacific/Chatham": (datetime(2027, 9, 26), datetime(2027, 4, 4)),
    # at midnight: the day begins at 01:00
    "Asia/Beirut": (datetime(2027, 3, 28), datetime(2027, 10, 31)),
    # by two hours, and on a Saturday at midnight
    "Antarctica/Troll": (datetime(2027, 3, 28), datetime(2027, 10, 31)),
}
"""Days on which clocks go forward and back."""
DAYS = [(zone, day) for zone, days in CHANGES.items() for day in days]


def ahead(cron: str, zone: str, since: str, count: int) -> list[str]:
    """Return the next occurrences after a wall time, in the zone's own time."""
    start = datetime.fromisoformat(since).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = Timetable(cron=cron, zone=zone).upcoming(start, count)
    return [f"{at.astimezone(ZoneInfo(zone)):%d %H:%M:%S%z}" for at in found]


@pytest.mark.seed("S4-06")
@pytest.mark.parametrize(
    ("cron", "zone", "since", "expected"),
    [
        # A wall time that the clocks skip occurs once, at the instant of the change.
        ("30 2 * * *", "Europe/Paris", "2027-03-27T12:00",
         ["28 03:00:00+0200", "29 02:30:00+0200"]),
        ("30 2 * * *", "America/New_York", "2027-03-13T12:00",
         ["14 03:00:00-0400", "15 02:30:00-0400"]),
        ("10,20 2 * * *", "Europe/Paris", "2027-03-27T12:00",
         ["28 03:00:00+0200", "29 02:10:00+0200"]),
        ("0 2,3 * * *", "Europe/Paris", "2027-03-27T12:00",
         ["28 03:00:00+0200", "29 02:00:00+0200", "29 03:00:00+0200"]),
        ("15 0 * * *", "Asia/Beirut", "2027-03-27T12:00",
         ["28 01:00:00+0300", "29 00:15:00+0300"]),
        # The same with seconds.
        ("7 30 2 * * *", "Europe/Paris", "2027-03-27T12:00",
         ["28 03:00:00+0200", "29 02:30:07+0200"]),
        # A wall time that occurs twice fires the first time only.
        ("30 2 * * *", "Europe/Paris", "2027-10-30T12:00",
         ["31 02:30:00+0200", "01 02:30:00+0100"]),
        ("0 30 1 * * *", "America/New_York", "2027-11-06T12:00",
         ["07 01:30:00-0400", "08 01:30:00-0500"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2027-04-03T12:00",
         ["04 01:45:00+1100", "05 01:45:00+1030"]),
        # An expression that recurs within hours follows the wall clock.
        ("*/30 * * * *", "Europe/Paris", "2027-03-28T01:20",
         ["28 01:30:00+0100", "28 03:00:00+0200", "28 03:30:00+0200"]),
        ("*/30 2 * * *", "Europe/Paris", "2027-10-31T01:00",
         ["31 02:00:00+0200", "31 02:30:00+0200", "31 02:00:00+0100", "31 02:30:00+0100",
          "01 02:00:00+0100"]),
        ("*/15 2 * * *", "Australia/Lord_Howe", "2027-04-04T00:00",
         ["04 02:00:00+1030", "04 02:15:00+1030", "04 02:30:00+1030", "04 02:45:00+1030"]),
        ("0 */2 * * *", "America/New_York", "2027-03-14T00:30",
         ["14 04:00:00-0400", "14 06:00:00-0400"]),
    ],
)  # fmt: skip
def test_daylight_saving(cron: str, zone: str, since: str, expected: list[str]) -> None:
    assert ahead(cron, zone, since, len(expected)) == expected


def walked(zone: str, day: datetime, matches: "set[tuple[int, int]]") -> list[datetime]:
    """Return the minutes of three days whose wall time matches, found by checking every minute."""
    at = (day - timedelta(days=1)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = []
    for _ in range(3 * 24 * 60):
        at += MINUTE
        local = at.astimezone(ZoneInfo(zone))
        if (local.hour, local.minute) in matches:
            found.append(at)
    return found


@quick
@given(
    where=st.sampled_from(DAYS),
    step=st.sampled_from([1, 7, 10, 15, 20, 30]),
    hours=st.sets(st.integers(0, 4), min_size=1),
)
def test_a_free_expression_happens_whenever_the_wall_clock_shows_it(
    where: tuple[str, datetime], step: int, hours: set[int]
) -> None:
    zone, day = where
    expected = walked(
        zone, day, {(hour, minute) for hour in hours for minute in range(0, 60, step)}
    )
    start = (day - timedelta(days=1)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    cron = f"*/{step} {','.join(map(str, sorted(hours)))} * * *"
    found = Timetable(cron=cron, zone=zone).upcoming(start, len(expected))
    assert found == expected


@quick
@given(
    where=st.sampled_from(DAYS),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    second=st.none() | st.integers(0, 59),
)
def test_a_daily_one_happens_once_on_each_day(
    where: tuple[str, datetime], hour: int, minute: int, second: int | None
) -> None:
    zone, day = where
    fields = f"{minute} {hour} * * *" if second is None else f"{second} {minute} {hour} * * *"
    start = (day - timedelta(days=2)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = Timetable(cron=fields, zone=zone).upcoming(start - timedelta(seconds=1), 5)
    days = [at.astimezone(ZoneInfo(zone)).date() for at in found]
    assert [(one - days[0]).days for one in days] == [0, 1, 2, 3, 4]
    for at in found:
        shown = at.astimezone(ZoneInfo(zone))
        same = (shown.hour, shown.minute, shown.second) == (hour, minute, second or 0)
        before = (at - timedelta(seconds=1)).astimezone(ZoneInfo(zone))
        assert same or before.utcoffset() != shown.utcoffset(), at
        assert shown.fold == 0


@quick
@given(
    zone=st.sampled_from([*CHANGES, "UTC", "Asia/Kathmandu"]),
    cron=st.sampled_from(
        ["*/5 * * * *", "0 9 * * 1-5", "*/7 * * * * *", "30 2 29 2 *", "0 0 L * *", "5 4 * * sun"]
    ),
    at=st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1)),
    until=st.integers(0, 10_000),
)
def test_occurrences_do_not_depend_on_the_query_time(
    zone: str, cron: str, at: datetime, until: int
) -> None:
    """Searching from any moment before an occurrence finds it; past ones are never found."""
    table, start = Timetable(cron=cron, zone=zone), at.replace(tzinfo=UTC)
    found = table.after(start)
    assert found is not None
    assert found > start
    share = start + (found - start) * until / 10_001
    assert table.after(share) == found
    following = table.after(found)
    assert following is not None
    assert following > found


@quick
@given(
    every=st.integers(recurrence.MIN_INTERVAL_MS, 10**9),
    at=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)),
)
def test_intervals_count_from_the_start_time(every: int, at: datetime) -> None:
    start = datetime(2026, 11, 22, 8, 0, 0, 123_456, tzinfo=UTC)
    table = Timetable(every_ms=every, start_at=start)
    instant = at.replace(tzinfo=UTC)
    found = table.after(instant)
    assert found is not None
    assert found >= start
    assert found.microsecond % 1000 == 0
    first = start.replace(microsecond=124_000)
    assert (found - first) % timedelta(milliseconds=every) == timedelta(0)
    assert found > instant
    assert found == first or found - timedelta(milliseconds=every) <= instant


@pytest.mark.parametrize(
    ("cron", "stored", "nearest"),
    [
        ("34 21 * * *", "06-10 21:34", "06-10 21:34"),
        ("34 21 * * *", "06-10 20:34", "06-10 21:34"),
        ("34 21 * * *", "06-10 22:34", "06-10 21:34"),
        ("34 21 24 12 *", "12-24 22:34", "12-24 21:34"),
        ("* 9-17 * * *", "06-10 08:00", "06-10 09:00"),
        ("* 9-17 * * *", "06-10 18:00", "06-10 17:59"),
        ("0 */2 * * *", "06-10 21:00", "06-10 22:00"),  # both are as near: not too early
        ("0 0 29 2 *", "03-05 00:00", None),
    ],
)
def test_the_occurrence_nearest_to_a_stored_one(
    cron: str, stored: str, nearest: str | None
) -> None:
    def instant(text: str) -> datetime:
        return datetime.fromisoformat(f"2027-{text}+01:00")

    table = Timetable(cron=cron, zone="Africa/Lagos", end_at=instant("12-31 00:00"))
    assert table.nearest(instant(stored)) == (nearest and instant(nearest))


def test_start_and_end_are_inclusive() -> None:
    nine = datetime(2027, 1, 4, 9, tzinfo=UTC)
    table = Timetable(cron="0 9 * * *", start_at=nine, end_at=nine + timedelta(days=2))
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    assert table.upcoming(long_ago, 9) == [nine + timedelta(days=day) for day in range(3)]
    assert table.after(nine + timedelta(days=2)) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("* * * *", "Five fields"),
        ("@daily", "Five fields"),
        ("* * * * * * *", "Five fields"),
        ("", "Five fields"),
        ("٣ * * * *", "Five fields"),
        ("60 * * * *", "Bad minute"),
        ("* * * * * 8", "Bad day-of-week"),
        ("*/0 * * * *", "Bad minute"),
        ("0 0 31 2 *", "Bad day-of-month"),
        ("* * */20 * 1L", "does not occur"),
        ("1," * 150 + "1 * * * *", "characters"),
    ],
)
def test_invalid_cron_expressions_are_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        recurrence.check_cron(text)


@quick
@given(text=st.text(alphabet="0123456789*/,-L#WMONJAN ", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        cron = recurrence.check_cron(text)
    except ValueError:
        return
    table = Timetable(cron=cron, zone="Europe/Paris")
    assert len(table.upcoming(datetime(2027, 3, 27, tzinfo=UTC), 3)) <= 3
    assert table.words().endswith(", Europe/Paris")


@pytest.mark.parametrize(
    "name", ["", "europe/paris", "Mars/Phobos", "../UTC", "localtime", "right/UTC", "Europe", "\0"]
)
def test_invalid_time_zones_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="IANA"):
        recurrence.check_zone(name)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (Timetable(cron="0 9 * * 1-5", zone="Europe/Paris"),
         "At 09:00 on Monday through Friday, Europe/Paris"),
        (Timetable(cron="*/15 * * * * *"), "Every 15th second of every minute, UTC"),
        (Timetable(every_ms=500), "Every 500 ms"),
        (Timetable(every_ms=1000), "Every second"),
        (Timetable(every_ms=90_000), "Every 90 seconds"),
        (Timetable(every_ms=86_400_000), "Every day"),
        (Timetable(every_ms=7_200_000), "Every 2 hours"),
    ],
)  # fmt: skip
def test_a_recurrence_is_described_in_words(table: Timetable, words: str) -> None:
    assert table.words() == words
