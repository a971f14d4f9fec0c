"""Run the pipeline's benchmark from the command line: `python -m bench.pipeline --help`."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import console, results
from bench.pipeline.queries import QUESTIONS
from bench.pipeline.session import DELIVERING, RATE, Answer, Findings, Session

TITLES = {question.name: question.title for question in QUESTIONS}
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
    """Measure, print and write into the page. Returns 1 if anything failed."""
    options = _parser().parse_args(arguments)
    with console.command("bench") as terminal:
        if options.findings:
            found = Findings.load(options.findings)
        else:
            beside = BESIDE[options.sizes]
            session = Session(options.sizes, beside, options.only or (), options.keep)
            with console.Bar(terminal, session.steps()) as bar:
                found = session.run(bar)
        console.write(terminal, options.output, markdown(found), "pipeline")
    return 1 if found.failures or any(answer.failures for answer in found.answers) else 0


def _parser() -> argparse.ArgumentParser:
    parser = console.parser(
        "python -m bench.pipeline",
        "Measure the jobs of the data pipeline, and write docs/performance.md.",
        EPILOG,
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
    names = [*TITLES, DELIVERING]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="JOB", help="may be repeated"
    )
    console.add_files(parser)
    parser.add_argument(
        "--from", dest="findings", type=Path, metavar="JSON", help="the table again"
    )
    return parser


def markdown(found: Findings) -> str:
    """Return the machine, the comparison of each question, and its growth with the data."""
    other_work = max((it.other_work for it in found.answers), default=0)
    preface = [
        found.at,
        *found.machine.lines(),
        found.settings,
        f"other work took at most {other_work:.0%} of the machine",
    ]
    parts = [[f"- {text}" for text in preface]]
    if beside := [answer for answer in found.answers if answer.mariadb_s is not None]:
        parts.append([f"With {beside[0].attempts:,} attempts:", "", *_comparison(beside)])
    if found.answers:
        title = "Seconds by attempts, and memory at each of these sizes in MiB:"
        parts.append([title, "", *_growth(found.answers)])
    if found.latencies:
        title = f"Beside {RATE} messages a second, with {found.latency_attempts:,} attempts:"
        parts.append([title, "", *_latencies(found)])
    failures = "\n".join(f"**failed:** {text}" for text in found.failures)
    return "\n\n".join(["\n".join(part) for part in parts] + [failures] * bool(failures))


def _comparison(answers: Sequence[Answer]) -> Iterable[str]:
    head = ["question", "rows", "job", "rows/s", "MariaDB itself", "times the job", "DuckDB"]
    head += ["database's CPU: job", "asked itself"]
    rows = [
        (
            TITLES[it.question],
            f"{it.rows:,}",
            f"{it.job.seconds:.1f} s",
            f"{it.rows / it.job.seconds:,.0f}",
            _seconds(it.mariadb_s),
            f"{it.mariadb_s / it.job.seconds:.2f}" if it.mariadb_s is not None else "",
            _seconds(it.duckdb.seconds if it.duckdb else None),
            f"{it.job.database_cpu_s:.1f} s",
            _seconds(it.mariadb_cpu_s),
        )
        for it in answers
    ]
    return results.markdown_table(head, rows)


def _growth(answers: Sequence[Answer]) -> Iterable[str]:
    sizes = list(dict.fromkeys(answer.attempts for answer in answers))
    head = ["question", *[f"{size / 1e6:g} million" for size in sizes]]
    head += ["time / data, last step", "driver", "Java", "workers"]
    rows = []
    for name in dict.fromkeys(answer.question for answer in answers):
        measured = {it.attempts: it for it in answers if it.question == name}
        row = [TITLES[name], *[_cell(measured.get(size)) for size in sizes]]
        row.append(_slope(list(measured.values())))
        for part in ("driver_bytes", "jvm_bytes", "workers_bytes"):
            row.append(
                " / ".join(f"{getattr(it.job, part) / 2**20:,.0f}" for it in measured.values())
            )
        rows.append(row)
    return results.markdown_table(head, rows)


def _latencies(found: Findings) -> Iterable[str]:
    head = ("meanwhile", "POST sent to POST received, p50", "p99", "seconds", "rows deleted/s")
    rows = [
        (
            it.activity,
            f"{it.p50_ms:.1f} ms",
            f"{it.p99_ms:.1f} ms",
            f"{it.seconds:.0f}",
            f"{it.rows / it.seconds:,.0f}" if it.rows else "",
        )
        for it in found.latencies
    ]
    return results.markdown_table(head, rows)


def _cell(answer: Answer | None) -> str:
    if answer is None:
        return ""
    if answer.failures:
        return f"**failed:** {' '.join(answer.failures)}"
    return f"{answer.job.seconds:.1f}"


def _slope(answers: Sequence[Answer]) -> str:
    if len(answers) < 2 or not answers[-2].job.seconds:
        return ""
    last, before = answers[-1], answers[-2]
    return f"{last.job.seconds / before.job.seconds / (last.attempts / before.attempts):.2f}"


def _seconds(value: float | None) -> str:
    return f"{value:.1f} s" if value is not None else ""


if __name__ == "__main__":
    sys.exit(main())
