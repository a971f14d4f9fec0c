"""Run the benchmark from the command line: `python -m bench --help`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import console, results
from bench.adapters import BenchError, Broker
from bench.broker import Hookstation
from bench.databases import KINDS, Kind
from bench.results import Result
from bench.scenarios import SCENARIOS, profile
from bench.session import Contestant, Session
from bench.stage import FULL, QUICK, TINY

MODES = {sizes.name: sizes for sizes in (TINY, QUICK, FULL)}
EPILOG = """
Every figure starts from the real broker (`manage.py broker`, all defaults) on a database of its
own, and is thrown away with a sentence if an acknowledged message did not arrive. The machine
should have nothing else to do. docs/performance.md says what the figures mean.

  python -m bench                              the quick mode, about two minutes
  python -m bench --full                       everything, three runs, about an hour
  python -m bench --only one --only latency50  two scenarios
  python -m bench --from data/bench/*.json     the table again from stored results
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write it into the page. Returns 1 if a scenario failed."""
    options = _parser().parse_args(arguments)
    with console.command("bench") as terminal:
        found = [Result.load(path) for path in options.results] or _measure(options, terminal)
        console.write(terminal, options.output, results.markdown(SCENARIOS, found), "bench")
        if parts := profile.markdown(found):
            console.write(terminal, options.output, parts, "profile")
    return 1 if any(result.failures for result in found) else 0


def _measure(options: argparse.Namespace, terminal: Console) -> list[Result]:
    sizes = MODES[options.mode]
    kinds: Sequence[Kind] = options.database or KINDS
    contestants = [Contestant(Hookstation, kind) for kind in kinds]
    if options.beside:
        contestants.insert(1, Contestant(_adapter(options.beside), kinds[0]))
    runs = options.runs or (3 if sizes is FULL else 1)
    session = Session(contestants, SCENARIOS, sizes, runs, options.keep, options.only or ())
    with console.Bar(terminal, session.steps()) as bar:
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
    parser = console.parser(
        "python -m bench",
        "Measure what the broker reaches, and write the table of docs/performance.md.",
        EPILOG,
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
    keys = [scenario.key for scenario in SCENARIOS]
    parser.add_argument(
        "--only",
        action="append",
        choices=keys,
        metavar="SCENARIO",
        help="measure this scenario alone; may be repeated: " + ", ".join(keys),
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
    console.add_files(parser)
    parser.add_argument(
        "--from",
        dest="results",
        type=Path,
        nargs="+",
        default=[],
        metavar="JSON",
        help="measure nothing; make the table of stored results",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
