"""Move clocks forward, so that no test waits until a time has passed."""

import time
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import pytest

from channels_app.database import clock


def forward(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Callable[[float], None]:
    """Return a function that moves the database's clock forward by seconds.

    It also moves the monotonic clock that the modules read as ``time.monotonic``.
    """
    passed_s = 0.0
    now, ticks = clock.now, time.monotonic

    def move(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds

    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(seconds=passed_s))
    shifted = SimpleNamespace(monotonic=lambda: ticks() + passed_s)
    for module in modules:
        monkeypatch.setattr(module, "time", shifted)
    return move
