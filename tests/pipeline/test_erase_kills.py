"""An erasure that is killed at any step and repeated: the same lake, and one correct receipt."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delivery.models import Erasure, PipelineRun, Segment
from pipeline import settings
from pipeline.broker import runs
from pipeline.lake import planning
from pipeline.settings import Settings
from pipeline.transforms import segments
from tests.pipeline import month as month_module
from tests.pipeline.conftest import RunArchive, RunJob
from tests.pipeline.whereabouts import Lake, Rows, assert_once, in_tables, prune, states

pytestmark = pytest.mark.django_db(transaction=True)
WHO = "customer-7"
WHILE_ERASING = (
    "before_reopen_commit",
    "after_reopen_commit",
    "after_reopen_publish",
    "after_erase",
    "before_receipt",
)
FINISHED_BY_ARCHIVE = ("after_reopen_commit", "after_reopen_publish")
"""Failpoints after which the archive job, too, finishes what was begun."""


class Died(BaseException):
    """Cutoff a run like a kill: no handler catches it."""


@pytest.fixture
def before(
    monkeypatch: pytest.MonkeyPatch, address: str, archive_job: RunArchive, chosen: Settings
) -> Rows:
    """All rows; the old ones are in the lake."""
    monkeypatch.setattr(planning, "SEGMENT_ROWS", 60)
    monkeypatch.setattr(segments, "PART_ROWS", 20)
    monkeypatch.setenv(settings.READ_URL, address)
    month_module.make_few_days(300)
    rows = in_tables()
    for _ in range(4):
        archive_job()
        prune()
    assert set(states()) == {"pruned"}
    return rows


def theirs(rows: Rows, everywhere: Rows) -> Rows:
    """The rows to erase among ``rows``; ``everywhere`` has all messages that decide it."""
    mine = {key for key, row in everywhere["messages"].items() if row["ordering_key"] == WHO}
    owner = {"messages": "id", "deliveries": "message_id", "attempts": "message_id"}
    return {
        name: {key: row for key, row in some.items() if row[owner[name]] in mine}
        for name, some in rows.items()
    }


def assert_erased(before: Rows, in_lake: Rows, files: dict[str, Any], lake: Lake) -> None:
    """Check that only those rows are gone, the receipt is right, and no other file is left."""
    gone = theirs(in_lake, before)
    assert min(map(len, gone.values())) > 0
    left = {name: {k: v for k, v in rows.items() if k not in gone[name]}
            for name, rows in before.items()}  # fmt: skip
    assert_once(left, lake)
    assert set(states()) == {"pruned"}
    receipt = Erasure.objects.get()
    assert receipt.finished_at is not None
    assert (receipt.message_count, receipt.delivery_count, receipt.attempt_count) == (
        *(len(gone["messages"]), len(gone["deliveries"]), len(gone["attempts"])),
    )
    lost = {file["path"]: file["rows"] for file in receipt.files}
    assert len(lost) == len(receipt.files)
    assert sum(lost.values()) == sum(map(len, gone.values()))
    for file in receipt.files:
        assert file["before"] == files[file["path"]]
        path = lake.folder / file["path"]
        assert file["after"] == (_sha256(path) if path.exists() else "")
    assert WHO not in "".join(str(run.options) for run in PipelineRun.objects.all())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files(lake: Lake) -> dict[str, str]:
    return {
        str(path.relative_to(lake.folder)): _sha256(path) for path in lake.folder.rglob("*.parquet")
    }


def dying(name: str, visit: int) -> Callable[[str], None]:
    """Return a failpoint that ends the run when it is reached for that time."""
    seen: list[str] = []

    def reach(here: str) -> None:
        if here == name:
            seen.append(here)
            if len(seen) == visit:
                raise Died

    return reach


@pytest.mark.parametrize(
    ("names", "who_goes_on"), [(WHILE_ERASING, "erase"), (FINISHED_BY_ARCHIVE, "archive")]
)
def test_an_erasure_that_ends_anywhere_is_finished_by_the_next(
    names: tuple[str, ...],
    who_goes_on: str,
    before: Rows,
    run_job: RunJob,
    archive_job: RunArchive,
    chosen: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run continues where the one before ended, in the middle of the files."""
    assert chosen.lake is not None
    lake = Lake(chosen.lake)
    in_lake, files = lake.rows(), _files(lake)
    for place, name in enumerate(names):
        with monkeypatch.context() as patched:
            # Later runs leave the files of earlier ones alone, and so end in the middle, too.
            patched.setattr(runs, "failpoint", dying(name, 1 if place else 2))
            with pytest.raises(Died):
                run_job("erase", ordering_key=[WHO])
        assert Erasure.objects.get().finished_at is None
        if who_goes_on == "archive":
            archive_job()
            assert set(states()) == {"pruned"}
    run_job("erase", ordering_key=[WHO])
    assert_erased(before, in_lake, files, lake)


def test_messages_with_rows_in_files_on_their_way_wait_for_these(
    before: Rows, run_job: RunJob, chosen: Settings
) -> None:
    """Otherwise no later erasure could find the rows that remain."""
    assert chosen.lake is not None
    lake = Lake(chosen.lake)
    mine = theirs(lake.rows(), before)
    row = next(iter(mine["deliveries"].values()))
    segment = Segment.objects.get(
        kind="deliveries", low__lte=row["id"], high__gt=row["id"], row_count__gt=0
    )
    rows = segment.row_count
    Segment.objects.filter(id=segment.id).update(state="amending", row_count=rows + 1)

    first = run_job("erase", ordering_key=[WHO])

    assert (first["busy_files"], first["waiting_messages"]) == (2, len(in_it(mine, segment)))
    left = theirs(lake.rows(), before)
    assert set(left["messages"]) == in_it(mine, segment) & set(mine["messages"])
    assert {row["message_id"] for row in left["deliveries"].values()} == in_it(mine, segment)

    Segment.objects.filter(id=segment.id).update(state="pruned", row_count=rows)
    run_job("erase", ordering_key=[WHO])
    assert not any(theirs(lake.rows(), before).values())
    assert_once({name: {k: v for k, v in some.items() if k not in mine[name]}
                 for name, some in before.items()}, lake)  # fmt: skip


def in_it(rows: Rows, segment: Segment) -> set[int]:
    """Ids of the messages with deliveries in a segment."""
    found = rows["deliveries"].values()
    return {row["message_id"] for row in found if segment.low <= row["id"] < segment.high}
