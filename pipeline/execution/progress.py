"""Show a run's progress to a person who started it by hand."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.broker.runs import RedactingFormatter, Run

REPORT_INTERVAL_S = 30.0
"""Seconds between two lines about the same stage."""

logger = logging.getLogger(__name__)


@contextmanager
def show_progress(run: Run) -> Iterator[None]:
    """Show a bar on a terminal; elsewhere print a line for each stage and occasional progress."""
    console = Console(stderr=True)
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(
        RedactingFormatter(f"%(asctime)s %(levelname)s {run.job}: %(message)s", run.redact)
    )
    if console.is_terminal:
        handler = RichHandler(logging.WARNING, console, show_time=False, show_path=False)
        handler.setFormatter(RedactingFormatter("%(message)s", run.redact))
    logging.getLogger().addHandler(handler)
    try:
        if console.is_terminal:
            with _bar(run, console):
                yield
        else:
            run.on_report = _ProgressLines(run).print
            yield
    finally:
        run.on_report = lambda: None
        logging.getLogger().removeHandler(handler)


@contextmanager
def _bar(run: Run, console: Console) -> Iterator[None]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(run.job, total=None)
        run.on_report = lambda: bar.update(
            task,
            description=f"{run.job}: {run.stage}",
            completed=run.done,
            total=run.total or None,
        )
        yield


class _ProgressLines:
    """Print progress lines. The run itself logs the beginning of a stage."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stage, self._at = "", 0.0

    def print(self) -> None:
        """Print a line when REPORT_INTERVAL_S has passed since the last one."""
        run, now = self._run, time.monotonic()
        if run.stage != self._stage:
            self._stage, self._at = run.stage, now
        elif run.total and now - self._at >= REPORT_INTERVAL_S:
            self._at = now
            logger.info("%s: %s of %s", run.stage, f"{run.done:,}", f"{run.total:,}")
