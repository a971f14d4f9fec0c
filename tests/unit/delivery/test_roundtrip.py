"""Round-trip time: its parts add up to the total, whatever the hosts' clocks show (S3-16)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.core import timing
from tests.support.properties import quick

BEGIN = datetime(2026, 11, 22, tzinfo=UTC)


def ms(amount: float) -> datetime:
    return BEGIN + timedelta(milliseconds=amount)


@pytest.mark.seed("S3-16")
def test_roundtrip_ends_with_the_recorded_acknowledgement() -> None:
    found = timing.of(BEGIN, ms(20), 5, 100, ms(400))
    assert [(part.name, part.ms) for part in found.parts] == [
        ("waited", 20),
        ("reached", 5),
        ("answered", 95),
        ("acknowledged", 280),
    ]
    assert found.total_ms == 400
    assert [part.begins for part in found.parts] == [0, 0.05, 0.0625, 0.3]


def test_roundtrip_over_an_open_connection_has_no_connect_time() -> None:
    found = timing.of(BEGIN, ms(20), None, 100, ms(130))
    assert found.sent_at == found.leased_at == ms(20)


@quick
@given(
    started=st.integers(-5000, 10_000),
    connect=st.none() | st.integers(0, 3000),
    total=st.integers(0, 10_000),
    finished=st.integers(-100, 10_000),
)
def test_roundtrip_times_never_decrease(
    started: int, connect: int | None, total: int, finished: int
) -> None:
    found = timing.of(BEGIN, ms(started), connect, total, ms(finished))
    instants = [
        found.accepted_at,
        found.leased_at,
        found.sent_at,
        found.responded_at,
        found.acknowledged_at,
    ]
    assert instants == sorted(instants)
    assert sum(part.ms for part in found.parts) == pytest.approx(found.total_ms)
    assert sum(part.share for part in found.parts) == pytest.approx(1 if found.total_ms else 0)
