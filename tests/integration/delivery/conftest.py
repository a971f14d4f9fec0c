"""Times that tests of deliveries need not wait for."""

import pytest

from delivery.rules import breaker
from delivery.runtime import reconciler


@pytest.fixture(autouse=True)
def _second_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit looks twice at what seems late, two seconds apart; nothing moves in a test."""
    monkeypatch.setattr(reconciler, "CHECK_INTERVAL_S", 0.1)


@pytest.fixture
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that answers 503 is left alone for 20 ms, instead of a second."""
    monkeypatch.setattr(breaker, "SLOW_BASE_S", 0.02)
