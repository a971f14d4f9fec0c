"""Plain processes in the place of Spark's executors: most archive tests need no Spark.

The work runs in other processes, as on executors: the reader's SQLite library and Python's would
release each other's locks in one process.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pyarrow as pa

from pipeline.broker import executor
from pipeline.lake import writer


class Elsewhere:
    """Replaces Spark in pipeline/transforms/segments.py."""

    def __init__(self) -> None:
        # Not forked: this process has threads and an open database.
        self._pool = ProcessPoolExecutor(
            2, mp_context=get_context("spawn"), initializer=_end_with_parent
        )

    def ask(self, workers: Any, asked: Callable[..., Any], task: str) -> dict[str, Any]:
        """Run a task; return its result."""
        answer: dict[str, Any] = json.loads(self._pool.submit(_work, asked.__name__, task).result())
        return answer

    def read(self, sql: str, schema: pa.Schema) -> list[dict[str, Any]]:
        """Return the rows that the archive's reader finds."""
        found: list[dict[str, Any]] = self._pool.submit(_read, sql, schema).result()
        return found

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def _end_with_parent() -> None:
    """End this process with its parent, which cannot end it when it is killed itself."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _work(name: str, task: str) -> str:
    answer: str = getattr(writer, name)(task)
    return answer


def _read(sql: str, schema: pa.Schema) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.Table.from_batches(executor.read(sql, schema)).to_pylist()
    return rows
