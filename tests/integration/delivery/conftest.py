"""Shorter intervals, so that tests of deliveries need not wait."""

import pytest

from delivery.core import breaker
from delivery.maintenance import reconciliations
from delivery.pump import membership


@pytest.fixture(autouse=True)
def _second_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the 2 s between the two checks of deliveries that seem late in a reconciliation."""
    monkeypatch.setattr(reconciliations, "CHECK_INTERVAL_S", 0.1)


@pytest.fixture
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that answers 503 is paused for 20 ms instead of a second."""
    monkeypatch.setattr(breaker, "SLOW_BASE_S", 0.02)


@pytest.fixture(autouse=True)
def _patient_pumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pumps on a busy machine send, although their last heartbeat was a while ago."""
    monkeypatch.setattr(membership, "FENCE_S", 60.0)
