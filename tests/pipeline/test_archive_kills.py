"""The archive killed at every step, stalled, and run twice at once: each row exists once."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from delivery.maintenance import archived, counters
from delivery.models import Delivery, PipelineLock, Segment
from pipeline import settings
from pipeline.broker import runs
from pipeline.lake import planning
from pipeline.lake.layout import LakeError
from pipeline.settings import Settings
from pipeline.transforms import segments
from tests.pipeline import month as month_module
from tests.pipeline import without_spark
from tests.pipeline.conftest import RunArchive
from tests.pipeline.process import ON_EXECUTORS, PATIENCE_S, Process
from tests.pipeline.test_erase_kills import WHILE_ERASING
from tests.pipeline.whereabouts import Lake, assert_once, in_tables, prune, requeue, states
from tests.support.counts import assert_counters_are_true

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[2]
REACHED = re.compile(r'runs\.failpoint\("(\w+)"\)')
WHILE_EXPORTING = (
    "after_plan",
    "before_export_commit",
    "after_export_commit",
    "after_publish",
    "before_verified",
    "after_verified",
)
WHILE_AMENDING = (
    "before_amend_commit",
    "after_amend_commit",
    "after_amend_publish",
    "after_amend",
)

KILLED_WITH_SPARK = ("after_plan", "in_export", "after_publish")
"""While the run starts, in an executor, and while it works."""


class Died(BaseException):
    """Cutoff a run like a kill: no handler catches it."""


@pytest.fixture(autouse=True)
def _small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(planning, "SEGMENT_ROWS", 100)
    monkeypatch.setattr(segments, "PART_ROWS", 20)
    monkeypatch.setenv(settings.READ_URL, address)
    if request.node.get_closest_marker("e2e"):
        month_module.make(messages=150)
    else:
        month_module.make_few_days(150)


@pytest.fixture
def files(chosen: Settings) -> Lake:
    """The lake's files."""
    assert chosen.lake is not None
    return Lake(chosen.lake)


@contextmanager
def reaching(
    monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None], visit: int
) -> Iterator[list[str]]:
    """Call ``act`` when a failpoint is reached for that time."""
    seen: list[str] = []

    def reach(here: str) -> None:
        if here == name:
            seen.append(here)
            if len(seen) == visit:
                act()

    with monkeypatch.context() as patched:
        patched.setattr(runs, "failpoint", reach)
        yield seen


def die() -> None:
    raise Died


def make_amending(archive_job: RunArchive) -> dict[int, Any]:
    """Make verified segments lose a row to a replay; return the replayed rows."""
    archive_job()
    keys = []
    for segment in Segment.objects.filter(kind="deliveries"):
        mine = Delivery.objects.filter(id__gte=segment.low, id__lt=segment.high)
        key = mine.filter(state="delivered").order_by("-id").values_list("id", flat=True)[0]
        requeue(key)
        keys.append(key)
    prune()
    assert set(states()) == {"amending"}
    return {key: in_tables()["deliveries"][key] for key in keys}


def finish(archive_job: RunArchive) -> None:
    """Archive and prune until nothing changes any more."""
    for _ in range(6):
        result = archive_job()
        if not prune() and not result["exported"] and set(states()) <= {"pruned"}:
            return
    raise AssertionError(states())


def test_each_place_is_killed_at() -> None:
    found = {
        name
        for path in (ROOT / "pipeline").rglob("*.py")
        for name in REACHED.findall(path.read_text())
    }
    assert found == {*WHILE_EXPORTING, *WHILE_AMENDING, *ON_EXECUTORS, *WHILE_ERASING}


@pytest.mark.parametrize("names", [WHILE_EXPORTING, WHILE_AMENDING], ids=["export", "amend"])
def test_a_run_that_ends_anywhere_is_finished_by_the_next(
    names: tuple[str, ...], archive_job: RunArchive, files: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run continues where the one before ended, in the middle of the segments."""
    monkeypatch.setattr(planning, "SEGMENT_ROWS", 30)
    before = in_tables()
    if names is WHILE_AMENDING:
        before["deliveries"] |= make_amending(archive_job)
    for name in names:
        visit = 1 if name == "after_plan" else 2
        with reaching(monkeypatch, name, die, visit), pytest.raises(Died):
            archive_job()
    finish(archive_job)
    assert_once(before, files)
    assert counters.gap() == 0


@pytest.mark.parametrize("name", [*WHILE_EXPORTING, *WHILE_AMENDING])
def test_a_run_that_was_stalled_for_too_long_changes_nothing_more(
    name: str, archive_job: RunArchive, files: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = in_tables()
    if name in WHILE_AMENDING:
        before["deliveries"] |= make_amending(archive_job)

    def meanwhile() -> None:
        PipelineLock.objects.update(until=datetime.now(UTC) - timedelta(seconds=1))
        finish(archive_job)

    visit = 1 if name in ("after_plan", *WHILE_AMENDING) else 2
    with suppress(runs.LockLost), reaching(monkeypatch, name, meanwhile, visit):
        # The stalled run may have nothing left to do.
        assert set(archive_job().values()) <= {0, 1}
    assert_once(before, files)
    finish(archive_job)
    assert_once(before, files)


def test_who_was_replaced_blames_nobody_for_a_file_that_is_gone(
    archive_job: RunArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that took over has removed the file; only real damage needs a person."""

    def replaced(*_: Any) -> dict[str, Any]:
        PipelineLock.objects.all().delete()
        connection.close()
        return {"error": "No such file"}

    monkeypatch.setattr(segments, "_call_executor", lambda *_: {"error": "No such file"})
    with pytest.raises(LakeError):
        archive_job()
    monkeypatch.setattr(segments, "_call_executor", replaced)
    with pytest.raises(runs.LockLost):
        archive_job()


def test_two_runs_do_not_work_at_once(chosen: Settings, archive_job: RunArchive) -> None:
    first = runs.begin(chosen.database_url, "archive", {}, run_id=None, requested_by="tests")
    try:
        with pytest.raises(runs.AlreadyRunning):
            archive_job()
    finally:
        first.end("finished", {})


def test_the_broker_may_end_between_any_two_of_its_deletions(
    archive_job: RunArchive, files: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = in_tables()
    archive_job()
    turns, looks = count(), archived._readers_active

    def sometimes() -> bool:
        if next(turns) % 5 == 4:
            raise Died
        return looks()

    with monkeypatch.context() as patched:
        patched.setattr(archived, "_readers_active", sometimes)
        for _ in range(200):
            with suppress(Died):
                if not prune():
                    break
            assert counters.gap() == 0
    prune()
    assert_counters_are_true()
    assert_once(before, files)


@pytest.mark.e2e
def test_a_process_that_is_killed_at_every_step(
    address: str, chosen: Settings, archive_job: RunArchive, files: Lake, tmp_path: Path
) -> None:
    """Each run continues where the one before was killed, some with Spark and some without."""
    before = in_tables()
    with_spark = Process(address, chosen, tmp_path, "archive")
    without = Process(address, chosen, tmp_path, "archive", command=without_spark.COMMAND)
    for name in ("after_plan", "in_export", *WHILE_EXPORTING[1:]):
        (with_spark if name in KILLED_WITH_SPARK else without).dies_at(name)
    before["deliveries"] |= make_amending(archive_job)
    for name in WHILE_AMENDING:
        without.dies_at(name)
    assert without.run() == 0
    finish(archive_job)
    assert_once(before, files)


@pytest.mark.e2e
def test_a_process_that_is_stopped_and_goes_on_after_another_run(
    address: str, chosen: Settings, archive_job: RunArchive, files: Lake, tmp_path: Path
) -> None:
    before = in_tables()
    pipeline = Process(address, chosen, tmp_path, "archive")
    with pipeline.started() as process:
        deadline = time.monotonic() + PATIENCE_S
        while not Segment.objects.exclude(state="planned").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        PipelineLock.objects.update(until=datetime.now(UTC) - timedelta(seconds=1))
        finish(archive_job)
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE_S) == 1
    finish(archive_job)
    assert_once(before, files)
