"""Run the pipeline's benchmark from the command line: `python -m bench.pipeline --help`."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from bench import table
from bench.__main__ import KEEP, PAGE, WIDE, leave
from bench.adapters import BenchError
from bench.pipeline import page
from bench.pipeline.findings import Findings
from bench.pipeline.questions import QUESTIONS
from bench.pipeline.session import DELIVERING, Session
from bench.progress import Bar

PART = "pipeline"
TINY, QUICK, FULL = (2_000,), (200_000, 1_000_000), (1_000_000, 5_000_000, 20_000_000)
BESIDE = {TINY: 2_000, QUICK: 1_000_000, FULL: 5_000_000}
"""By mode: the number of attempts at which MariaDB and DuckDB are measured too."""
EPILOG = """
Each job of the data pipeline over a month of traffic on a MariaDB of its own, and the same question
asked of MariaDB and of DuckDB. docs/performance.md says what the figures mean.

  python -m bench.pipeline                      a short look, ten minutes
  python -m bench.pipeline --full               1, 5 and 20 million attempts, two hours
  python -m bench.pipeline --only usage         one job
  python -m bench.pipeline --from data/bench/*-pipeline.json     the table again
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write into the page. The exit code is 1 if anything failed."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    try:
        if options.findings:
            found = Findings.load(options.findings)
        else:
            session = Session(
                sizes=options.sizes,
                beside=BESIDE[options.sizes],
                only=options.only or (),
                keep=options.keep,
            )
            with Bar(console, session.parts()) as bar:
                found = session.run(bar)
        text = page.markdown(found)
        console.print(Markdown(text))
        if options.output:
            table.write(options.output, text, PART)
            console.print(f"Written into {options.output}", markup=False, soft_wrap=True)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    return 1 if found.failures or any(answer.failures for answer in found.answers) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pipeline",
        description="Measure the jobs of the data pipeline, and write docs/performance.md.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mode = parser.add_mutually_exclusive_group()
    for name, sizes, text in (
        ("tiny", TINY, argparse.SUPPRESS),
        ("quick", QUICK, "a short look (the default)"),
        ("full", FULL, "1, 5 and 20 million attempts"),
    ):
        mode.add_argument(
            f"--{name}", dest="sizes", action="store_const", const=sizes, default=QUICK, help=text
        )
    names = [*(question.name for question in QUESTIONS), DELIVERING]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="JOB", help="may be repeated"
    )
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE", help="page to write")
    parser.add_argument("--keep", type=Path, default=KEEP, metavar="FOLDER", help="for the JSON")
    parser.add_argument(
        "--from", dest="findings", type=Path, metavar="JSON", help="the table again"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
