"""The console's page of the archive: the lake's contents by day, and each segment."""

from datetime import UTC, datetime, timedelta

import pytest

from channels_app.database import clock
from delivery.models import PipelineRun, Segment
from tests.support.console import list_url, operator, page_url
from tests.support.counts import key_at

pytestmark = pytest.mark.django_db


def make(kind: str, state: str, day: datetime, rows: int, run_id: int) -> Segment:
    low = key_at(day)
    file = {
        "table": kind,
        "path": f"{kind}/day={day.date()}/000000000001.parquet",
        "tmp": f"{kind}/day={day.date()}/000000000001.parquet.{run_id}.tmp",
        "rows": rows,
        "bytes": 3 << 20,
        "sha256": "5e" * 32,
        "first": low,
        "last": low + 5,
    }
    return Segment.objects.create(
        kind=kind,
        day=day.date(),
        low=low,
        high=low + 10,
        state=state,
        cutoffs={
            "finished": "2026-10-23T05:00:00+00:00",
            "dead": "2026-08-24T05:00:00+00:00",
            "channels": {"7": {}},
        },
        files=[file],
        row_count=rows,
        byte_count=3 << 20,
        planned_at=clock.now(),
    )


def test_the_archive_page_shows_the_lake_by_day() -> None:
    run = PipelineRun.objects.create(job="archive", requested_at=clock.now(), requested_by="x")
    newest = datetime(2026, 10, 20, 7, tzinfo=UTC)
    for number in range(3):
        make("deliveries", "pruned", newest - timedelta(days=1), 1000 + number, run.pk)
    make("deliveries", "verified", newest, 17, run.pk)
    make("messages", "planned", newest, 0, run.pk)
    make("messages", "pruned", newest - timedelta(days=60), 4711, run.pk)

    page = operator().get(list_url(Segment))

    text = page.content.decode()
    top = text.partition("The lake by day")[2].partition("</table>")[0]
    assert top.count("<tr>") == 3
    assert "3 pruned" in top
    assert "3,003" in top
    assert "1 verified" in top
    assert "1 planned" in top
    assert "4,711" not in top
    assert f"run {run.pk}" in text


def test_a_segment_page_shows_its_content() -> None:
    segment = make("deliveries", "pruned", datetime(2026, 10, 20, 7, tzinfo=UTC), 1234, 9)

    text = operator().get(page_url(segment)).content.decode()

    assert "5e" * 32 in text
    assert "1,234 rows, 3.0" in text
    assert "1 channels have their own" in text
