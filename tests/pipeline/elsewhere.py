"""What executors do, done by plain processes: the archive's tests need a Spark only for Spark.

In a process of its own, as on an executor: the reader's SQLite is another one than Python's, and
two in one process take each other's locks away.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.lake import export, totals
from pipeline.lake.ledger import File


class Elsewhere:
    """Stands in for Spark in pipeline/jobs/archive.py."""

    def __init__(self) -> None:
        # Not forked: this process has a database open, and threads.
        self._pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))

    def ask(self, spark: Any, asked: Callable[..., Any], task: str) -> dict[str, Any]:
        """A task's answer."""
        answer: dict[str, Any] = json.loads(self._pool.submit(_work, asked.__name__, task).result())
        return answer

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def read_back(context: Any, files: Sequence[File]) -> dict[str, dict[str, int]]:
    """By path: what the rows of each file come to."""
    found = {}
    for file in files:
        sums = dict.fromkeys(file.totals, 0)
        for batch in _batches(context.lake / file.path):
            of_batch = totals.of_batch(file.table, batch)
            sums = {name: value + of_batch[name] for name, value in sums.items()}
        found[file.path] = sums
    return found


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches()


def _work(name: str, task: str) -> str:
    rows = pa.RecordBatch.from_pylist([{"task": task}])
    (answer,) = getattr(export, name)(iter([rows]))
    return str(answer.to_pylist()[0]["answer"])
