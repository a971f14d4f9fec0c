"""Run a command on the terminal: its options, progress, tables, and how it ends."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import adapters, results
from bench.adapters import BenchError

WIDTH = 160
FRAMES_PER_SECOND = 2
"""Low, since drawing takes CPU time from the broker."""


def parser(prog: str, description: str, epilog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that stores results and writes them into a page."""
    parser.add_argument(
        "--output",
        type=Path,
        default=results.PAGE,
        metavar="FILE",
        help="page whose table is replaced (default: docs/performance.md)",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        default=results.FOLDER,
        metavar="FOLDER",
        help="where each run's numbers are stored as JSON (default: data/bench)",
    )


@contextmanager
def command(name: str) -> Iterator[Console]:
    """Provide the console of a command.

    BenchError ends it with status 1 and its message, an interrupt with status 130. A signal ends it
    through the ``finally`` clauses.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        # Output to a file uses the table's full width.
        yield Console(width=None if sys.stdout.isatty() else WIDTH)
    except BenchError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        sys.exit(130)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def write(console: Console, page: Path, text: str, part: str) -> None:
    """Print Markdown, and write it into a part of the page."""
    console.print(Markdown(text))
    results.write(page, text, part)
    say(console, f"Written into {page}")


class Bar:
    """Progress of a command and its steps: a bar on a terminal, elsewhere nothing."""

    def __init__(self, console: Console, steps: int) -> None:
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
        self._all = self._progress.add_task("scenarios", total=steps)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        say(self._console, text)

    @contextmanager
    def step(self, name: str) -> Iterator[adapters.Progress]:
        """Show a step while the context is open; call the result with its progress."""
        task = self._progress.add_task(name, total=None)
        try:
            yield lambda done, total: self._progress.update(task, completed=done, total=total)
        finally:
            self._progress.remove_task(task)
            self._progress.advance(self._all)
