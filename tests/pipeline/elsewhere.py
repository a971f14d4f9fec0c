"""What executors do, done by plain processes: the archive's tests need a Spark only for Spark.

In a process of its own, as on an executor: the reader's SQLite is another one than Python's, and
two in one process take each other's locks away.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from pipeline.lake import export


class Elsewhere:
    """Stands in for Spark in pipeline/transforms/segments.py."""

    def __init__(self) -> None:
        # Not forked: this process has a database open, and threads.
        self._pool = ProcessPoolExecutor(
            2, mp_context=get_context("spawn"), initializer=_end_with_parent
        )

    def ask(self, workers: Any, asked: Callable[..., Any], task: str) -> dict[str, Any]:
        """A task's answer."""
        answer: dict[str, Any] = json.loads(self._pool.submit(_work, asked.__name__, task).result())
        return answer

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def _end_with_parent() -> None:
    """Who is killed cannot end those who work for it."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _work(name: str, task: str) -> str:
    answer: str = getattr(export, name)(task)
    return answer
