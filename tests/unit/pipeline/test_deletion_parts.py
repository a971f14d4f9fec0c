"""Parts of a segment, each of which the broker deletes in one transaction."""

import pyarrow as pa
import pytest

from pipeline.lake import totals
from pipeline.lake.writer import _DeletionParts as DeletionParts


def rows(first: int, *sizes: int) -> pa.RecordBatch:
    keys = list(range(first, first + len(sizes)))
    columns = {"id": keys, "version": [3] * len(keys), "body_bytes": list(sizes)}
    return pa.RecordBatch.from_pydict({name: pa.array(it) for name, it in columns.items()})


def attempts(*deliveries: int, excerpt: bytes) -> pa.RecordBatch:
    columns = {
        "delivery_id": pa.array(deliveries, pa.int64()),
        "answer_headers": pa.array(["HTTP/1.1 200 OK"] * len(deliveries)),
        "answer_excerpt": pa.array([excerpt or None] * len(deliveries), pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.trap("a disk that stays full")
def test_parts_end_at_their_rows_or_bytes() -> None:
    parts = DeletionParts(most_rows=3, most_bytes=100)
    parts.add("messages", rows(10, 60, 40, 1, 0, 0, 0))
    parts.add("messages", rows(20, 500, 30, 30))
    parts.close("messages")

    assert [(last, count) for last, count, *_ in parts.rows] == [
        *((11, 2), (14, 3), (15, 1)),
        *((20, 1), (22, 2)),
    ]


def test_parts_hold_sums_of_keys_versions_and_attempts() -> None:
    parts = DeletionParts(most_rows=10, most_bytes=100)
    first = 5 * totals.PRIME + 7
    parts.add("deliveries", rows(first, 900, 900, 900))
    parts.close("deliveries")
    parts.add("attempts", attempts(first, first, first + 1, first + 9, 3, excerpt=b""))
    parts.add("attempts", attempts(first + 2, excerpt=bytes(80)))
    parts.close("attempts")

    assert parts.rows == [[first + 1, 2, 7 + 8, 6, 3], [first + 2, 1, 9, 3, 1]]


def test_without_rows_there_are_no_parts() -> None:
    parts = DeletionParts(most_rows=10, most_bytes=100)
    parts.close("deliveries")
    parts.add("attempts", attempts(3, excerpt=b""))

    assert parts.rows == []
