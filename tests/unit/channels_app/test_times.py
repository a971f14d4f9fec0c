"""Times and delays: RFC 3339 and milliseconds are read exactly, everything else is refused."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import times

NOW = datetime(2026, 1, 1, tzinfo=UTC)
INSTANTS = st.datetimes(datetime(1970, 1, 2), datetime(2400, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00+00:00"),
        ("2030-01-01t00:00:00z", "2030-01-01T00:00:00+00:00"),
        ("2030-01-01 00:00:00+02:00", "2029-12-31T22:00:00+00:00"),
        ("2030-01-01T00:00:00.1-05:30", "2030-01-01T05:30:00.100000+00:00"),
        ("2030-01-01T00:00:00.123456Z", "2030-01-01T00:00:00.123456+00:00"),
        ("2030-01-01T00:00:00.1234561Z", "2030-01-01T00:00:00.123457+00:00"),
        ("2030-01-01T00:00:00.999999001Z", "2030-01-01T00:00:01+00:00"),
        (1_893_456_000_123, "2030-01-01T00:00:00.123000+00:00"),
        ("1893456000123", "2030-01-01T00:00:00.123000+00:00"),
        (946_684_800_000, "2000-01-01T00:00:00+00:00"),
    ],
)
def test_instants_in_every_notation_are_parsed(value: object, expected: str) -> None:
    assert times.instant(value).isoformat() == expected


@pytest.mark.parametrize(
    "value",
    [
        "", "now", "2030", "2030-01-01", "20300101T000000Z", "2030-W01-1", "2030-01-01T00:00Z",
        "2030-01-01T00:00:00", "2030-01-01T24:00:00Z", "2030-02-30T00:00:00Z",
        "2030-01-01T00:00:60Z", "0000-01-01T00:00:00Z", "2030-01-01T00:00:00.Z",
        "2030-01-01T00:00:00.1234567890Z", "2030-01-01T00:00:00+0100", "2030-01-01T00:00:00+25:00",
        "\u0662\u0660\u0663\u0660-01-01T00:00:00Z", " 2030-01-01T00:00:00Z",
        "9999-12-31T23:59:59-01:00",
        "1e12", "-5", 0, -1000, 1_893_456_000, "1893456000", "1" * 16, 10**30, -(10**30),
        1.5, True, None, [], {}, b"2030-01-01T00:00:00Z",
    ],
)  # fmt: skip
def test_invalid_values_are_refused_with_an_error_message(value: object) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z].*\.$"):
        times.instant(value)


@given(INSTANTS)
def test_instants_round_trip_to_the_millisecond(value: datetime) -> None:
    read = times.instant(times.text(value))
    assert timedelta(0) <= value - read < timedelta(milliseconds=1)


@pytest.mark.seed("S4-28")
@given(INSTANTS, st.integers(0, 999))
def test_a_fraction_never_makes_it_earlier(value: datetime, nanoseconds: int) -> None:
    text = value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond:06}{nanoseconds:03}Z"
    assert timedelta(0) <= times.instant(text) - value <= timedelta(microseconds=1)
    soon = times.soon(text, value)
    assert timedelta(0) <= soon - value <= timedelta(milliseconds=1)
    assert times.instant(times.text(soon)) == soon


@given(INSTANTS)
def test_whole_milliseconds_around_an_instant(value: datetime) -> None:
    floor, ceil = times.floor_ms(value), times.ceil_ms(value)
    assert floor <= value <= ceil
    assert ceil - floor == (timedelta(0) if floor == value else timedelta(milliseconds=1))
    assert times.text(floor) == times.text(value)


def test_soon_ends_after_ten_years() -> None:
    assert times.soon("2035-01-01T00:00:00Z", NOW).year == 2035
    assert times.soon("1999-01-01T00:00:00Z", NOW).year == 1999
    with pytest.raises(ValueError, match="3660 days"):
        times.soon("2037-01-01T00:00:00Z", NOW)
    assert times.soon("2026-01-03T00:00:00Z", NOW, days=2).day == 3
    with pytest.raises(ValueError, match="2 days"):
        times.soon("2026-01-03T00:00:00.001Z", NOW, days=2)
    with pytest.raises(ValueError, match="172800000"):
        times.delay_ms(172_800_001, days=2)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (1500, 1500), ("1500", 1500)])
def test_a_delay(value: object, expected: int) -> None:
    assert times.delay_ms(value) == expected


@pytest.mark.parametrize(
    "value", [-1, 1.5, "1.5", "", "-1", "1_000", "²", True, None, 10**13, "9" * 15, 10**400]
)
def test_invalid_delays_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z].*\.$"):
        times.delay_ms(value)
