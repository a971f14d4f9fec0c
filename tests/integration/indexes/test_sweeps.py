"""Query plans of the sweeps, on full tables, with much work and with none."""

from dataclasses import replace
from datetime import timedelta

import pytest

from channels_app.database import clock
from delivery.maintenance import quota_usage, sweeps
from delivery.maintenance.sweeps import SweepScheduler
from delivery.models import SweepRun
from tests.integration.indexes.judge import judging
from tests.integration.indexes.world import World

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow("explains every statement of the sweeps")
def test_every_sweep(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every sweep now, and in 100 days, when most rows are old."""
    # Aggregates return few rows, so one slice must stay within what the judge allows.
    monkeypatch.setattr(quota_usage, "SLICE", 20)
    for sweep in sweeps.SWEEPS:
        SweepRun.objects.create(name=sweep.name, next_at=clock.now())
    with judging() as judge:
        for days in (0, 100):
            then = clock.now() + timedelta(days=days)
            monkeypatch.setattr(clock, "now", lambda then=then: then)
            SweepRun.objects.update(next_at=then)
            for sweep in sweeps.SWEEPS:
                judge.where = f"{sweep.name} after {days} days"
                rounds = SweepScheduler([replace(sweep, pause_s=0.0)])
                assert rounds.turn() == 1
                while rounds.is_busy:
                    rounds.turn()
    assert set(SweepRun.objects.values_list("last_error", flat=True)) == {""}
    judge.accept()
