"""Terminal: a run's progress for whoever started it by hand."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.runs import Run


@contextmanager
def progress(run: Run) -> Iterator[None]:
    """A bar on a terminal; elsewhere a line when a stage begins."""
    console = Console(stderr=True)
    if not console.is_terminal:
        said = [""]

        def say() -> None:
            if run.stage != said[0]:
                said[0] = run.stage
                print(f"{run.job}: {run.stage}", file=sys.stderr, flush=True)

        run.on_report = say
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(run.job, total=None)
        run.on_report = lambda: bar.update(
            task, description=run.stage, completed=run.done, total=run.total or None
        )
        yield
