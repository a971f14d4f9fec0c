"""Run the soak test from the command line: `python -m bench.soak --help`."""

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.__main__ import WIDE, leave
from bench.adapters import BenchError
from bench.databases import KINDS, Kind
from bench.progress import Bar
from bench.soak.run import Outcome, Plan, soak

EPILOG = """
The real broker under a steady load, with consumers that answer fast, slowly, wrongly, garbage or
not at all, while processes are killed by chance. In the end every acknowledged message must have
come to each consumer or be a dead letter with a reason, and `manage.py reconcile` must be content.

  python -m bench.soak                                 30 minutes on each database
  python -m bench.soak --minutes 5 --database sqlite
  python -m bench.soak --seed 4711                     the kills of an earlier run
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak test and print the results. The exit code is 1 if it failed."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    chosen: Sequence[Kind] = KINDS if options.database == "both" else (options.database,)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    well = True
    try:
        with Bar(console, len(chosen)) as bar:
            for kind in chosen:
                plan = Plan(kind, options.minutes * 60, options.rate, options.every, seed)
                bar.say(f"Soak on {kind}: {options.minutes:g} minutes, seed {seed}")
                with bar.row(kind) as tell, tempfile.TemporaryDirectory(prefix="soak-") as folder:
                    outcome = soak(plan, Path(folder), tell)
                show(console, outcome)
                well = well and outcome.is_well
    except BenchError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("soak: stopped", file=sys.stderr)
        return 130
    return 0 if well else 1


def show(console: Console, outcome: Outcome) -> None:
    """Print the results, and the memory and files of the processes."""
    accounts = Table("consumer", box=None, pad_edge=False)
    for name in ("requests", "acknowledged", "delivered", "dead", "lost", "came twice"):
        accounts.add_column(name, justify="right")
    for name, it in outcome.accounts.items():
        numbers = (it.calls, outcome.acknowledged, it.delivered, it.dead, it.lost, it.twice)
        accounts.add_row(name, *[f"{number:,}" for number in numbers])
    console.print(accounts)
    growth = Table("process", box=None, pad_edge=False)
    for name in ("killed", "MiB first", "MiB last", "files first", "files last"):
        growth.add_column(name, justify="right")
    for kind in sorted(outcome.growth.looks):
        first, last = outcome.growth.quarters(kind)
        sizes = f"{first[0]:.1f}", f"{last[0]:.1f}", f"{first[1]:.0f}", f"{last[1]:.0f}"
        growth.add_row(kind, f"{outcome.kills[kind]}", *sizes)
    console.print(growth)
    answers = ", ".join(
        f"{count:,} x {status}" for status, count in sorted(outcome.answers.items())
    )
    for line in (
        f"Answers to producers (0: the connection broke): {answers}",
        f"Drained in {outcome.drained_s:.0f} s. Audit: {outcome.audit}",
        f"{outcome.acknowledged:,} messages, {outcome.kills.total()} kills: lost {outcome.lost}, "
        + ("all is well." if outcome.is_well else "NOT WELL."),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description="Load, difficult consumers and random kills; then compare the accounts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30.0, metavar="N", help="of load (30)")
    parser.add_argument("--database", choices=(*KINDS, "both"), default="both", help="(both)")
    parser.add_argument("--rate", type=float, default=20.0, metavar="N", help="messages/s (20)")
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="seconds between two kills (5)"
    )
    parser.add_argument("--seed", type=int, help="of what happens by chance (a new one)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
