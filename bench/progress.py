"""Show progress on the terminal: the present row, and its progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

FRAMES_PER_SECOND = 2
"""Low, since drawing takes CPU time from the broker."""


class Bar:
    """A bar on a terminal; elsewhere a line for each row."""

    def __init__(self, console: Console, rows: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=FRAMES_PER_SECOND,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task("rows", total=rows)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line that remains."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def row(self, name: str) -> Iterator["Part"]:
        """Show a row while the context is open."""
        part = Part(self._progress, name)
        try:
            yield part
        finally:
            part.close()
            self._progress.advance(self._all)


class Part:
    """Progress of one row; call it with the done and the total number."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=None)

    def __call__(self, done: int, of: int, /) -> None:
        self._progress.update(self._task, completed=done, total=of)

    def close(self) -> None:
        """Finish the row."""
        self._progress.remove_task(self._task)
