"""The database's clock decides whether a run still reads: the broker's may be minutes off."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from channels_app.database import clock
from delivery.models import PipelineRun
from pipeline import settings
from pipeline.lake import planning
from pipeline.transforms import segments
from tests.pipeline import month as month_module
from tests.pipeline.conftest import RunArchive
from tests.pipeline.whereabouts import prune, states

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
OFF = timedelta(minutes=10)


@pytest.fixture(params=[OFF, -OFF], ids=["ahead", "behind"])
def databases(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[datetime]:
    """The database's time, ten minutes ahead of or behind this process."""
    off: timedelta = request.param
    with monkeypatch.context() as patched:
        patched.setattr(clock, "_ask", lambda: datetime.now(UTC) + off)
        clock.sync()
        yield clock.now()
    clock.sync()


def test_the_broker_rests_for_a_run_whatever_its_own_clock_says(
    archive_job: RunArchive, address: str, monkeypatch: pytest.MonkeyPatch, databases: datetime
) -> None:
    monkeypatch.setattr(planning, "SEGMENT_ROWS", 100)
    monkeypatch.setattr(segments, "PART_ROWS", 20)
    monkeypatch.setenv(settings.READ_URL, address)
    month_module.make_few_days(100)
    archive_job()
    reader = PipelineRun.objects.create(
        job="usage", state="running", requested_at=databases, heartbeat_at=databases
    )

    assert prune() == 0
    assert set(states()) == {"verified"}

    # Past the limit on silence: the run no longer counts as a reader.
    PipelineRun.objects.filter(pk=reader.pk).update(heartbeat_at=databases - timedelta(seconds=31))
    assert prune() > 0
    assert set(states()) == {"pruned"}
