"""Run the benchmark from the command line: `python -m bench --help`."""

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from bench import profile, table
from bench.adapters import BenchError, Broker
from bench.broker import Hookstation
from bench.databases import KINDS, ROOT, Kind
from bench.progress import Bar
from bench.results import Result
from bench.rows import ROWS
from bench.session import Contestant, Session
from bench.stage import FULL, QUICK, TINY

MODES = {sizes.name: sizes for sizes in (TINY, QUICK, FULL)}
PAGE = ROOT / "docs/performance.md"
KEEP = ROOT / "data/bench"
WIDE = 160
EPILOG = """
Every figure starts from the real broker (`manage.py broker`, all defaults) on a database of its
own, and is thrown away with a sentence if an acknowledged message did not arrive. The machine
should have nothing else to do. docs/performance.md says what the figures mean.

  python -m bench                              the quick mode, about two minutes
  python -m bench --full                       everything, three runs, about an hour
  python -m bench --only one --only latency50  two rows
  python -m bench --from data/bench/*.json     the table again from results that are kept
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write it into the page. The exit code is 1 if a row failed."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    # Output to a file uses the table's full width.
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    try:
        results = [Result.load(path) for path in options.results] or _measure(options, console)
        table.show(console, ROWS, results)
        if options.output:
            table.write(options.output, table.markdown(ROWS, results))
            if parts := profile.markdown(results):
                table.write(options.output, parts, "profile")
            console.print(f"Written into {options.output}", markup=False, soft_wrap=True)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    return 1 if any(result.failures for result in results) else 0


def _measure(options: argparse.Namespace, console: Console) -> list[Result]:
    sizes = MODES[options.mode]
    kinds: Sequence[Kind] = options.database or KINDS
    contestants = [Contestant(Hookstation, kind) for kind in kinds]
    if options.beside:
        contestants.insert(1, Contestant(_adapter(options.beside), kinds[0]))
    session = Session(
        contestants=contestants,
        rows=ROWS,
        sizes=sizes,
        runs=options.runs or (3 if sizes is FULL else 1),
        keep=options.keep,
        only=options.only or (),
    )
    with Bar(console, session.parts()) as bar:
        return session.run(bar)


def _adapter(name: str) -> type[Broker]:
    """Import the class of ``package.module:Class``. Raises BenchError."""
    module, _, attribute = name.partition(":")
    try:
        found: type[Broker] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BenchError(f"--beside {name}: {error}") from None
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what the broker reaches, and write the table of docs/performance.md.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--mode", choices=sorted(MODES), default=QUICK.name, help=argparse.SUPPRESS)
    for sizes, text in ((QUICK, "a short look (the default)"), (FULL, "large numbers and tables")):
        mode.add_argument(
            f"--{sizes.name}", dest="mode", action="store_const", const=sizes.name, help=text
        )
    parser.add_argument(
        "--runs", type=int, metavar="N", help="runs to take the median of (1; 3 with --full)"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[row.key for row in ROWS],
        metavar="ROW",
        help="measure this row alone; may be repeated: " + ", ".join(row.key for row in ROWS),
    )
    parser.add_argument(
        "--database",
        action="append",
        choices=KINDS,
        help="measure on this database alone (default: on both)",
    )
    parser.add_argument(
        "--beside",
        metavar="MODULE:CLASS",
        help="put another broker beside it, reached by this class (see bench/adapters.py)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=PAGE,
        metavar="FILE",
        help="page whose table is replaced (default: docs/performance.md)",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        default=KEEP,
        metavar="FOLDER",
        help="where each run's numbers are kept as JSON (default: data/bench)",
    )
    parser.add_argument(
        "--from",
        dest="results",
        type=Path,
        nargs="+",
        default=[],
        metavar="JSON",
        help="measure nothing; make the table of results that are kept",
    )
    return parser


def leave(number: int, frame: FrameType | None) -> None:
    """Exit through the ``finally`` clauses."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
