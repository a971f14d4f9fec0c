"""Format a line for each figure, for the terminal and for docs/performance.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.adapters import BenchError
from bench.figures import Figure, Verdict
from bench.results import Result, series
from bench.stage import Row

BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
PARTS = ("bench", "profile", "pipeline")
"""Names of the generated parts of a page."""
REACHED: dict[Verdict, str] = {"aim": "aim", "must": "must", "missed": "**no**", "unknown": ""}
ABSENT = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Cells of one figure."""

    figure: str
    must: str
    aim: str
    mariadb: str
    reached: str
    sqlite: str
    beside: str
    ratio: str


def lines(rows: Sequence[Row], results: Sequence[Result]) -> list[Line]:
    """Return all lines in the order of the rows, without figures that were not measured."""
    found: list[Line] = []
    for row in rows:
        for position, figure in enumerate(row.figures):
            line = _line(figure, row.key if position == 0 else None, results)
            if line.mariadb or line.sqlite or line.beside:
                found.append(line)
    return found


def markdown(rows: Sequence[Row], results: Sequence[Result]) -> str:
    """Return the generated part of the page."""
    content = lines(rows, results)
    is_beside = any(line.beside for line in content)
    head = ["figure", "must reach", "we aim for", "MariaDB", "reached", "SQLite"]
    head += ["other broker", "ratio"] if is_beside else []
    text = [*_preface(results), "", _markdown_line(head), "|---" * len(head) + "|"]
    for line in content:
        cells = [line.figure, line.must, line.aim, line.mariadb, line.reached, line.sqlite]
        text.append(_markdown_line([*cells, line.beside, line.ratio][: len(head)]))
    return "\n".join(text)


def write(path: Path, text: str, name: str = "bench") -> None:
    """Write the text between the page's markers of that name; a new page gets all markers.

    Raises BenchError when the markers are missing.
    """
    first, last = BEGIN.format(name), END.format(name)
    empty = "".join(f"{BEGIN.format(part)}\n{END.format(part)}\n" for part in PARTS)
    page = path.read_text() if path.exists() else empty
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise BenchError(f"{path} has no lines {first} and {last}.")
    path.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}")


def show(console: Console, rows: Sequence[Row], results: Sequence[Result]) -> None:
    """Print the table on the terminal."""
    content = lines(rows, results)
    table = Table(box=None, pad_edge=False)
    for name in ("figure", "must", "aim", "MariaDB", "reached", "SQLite"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    is_beside = any(line.beside for line in content)
    for name in ("other", "ratio") if is_beside else ():
        table.add_column(name, justify="right")
    for line in content:
        cells = [line.figure, line.must, line.aim, line.mariadb, line.reached, line.sqlite]
        cells += [line.beside, line.ratio] if is_beside else []
        table.add_row(*[cell.replace("**", "") for cell in cells])
    for text in _preface(results):
        console.print(text.removeprefix("- "), markup=False, soft_wrap=True)
    console.print(table)


def _line(figure: Figure, row: str | None, results: Sequence[Result]) -> Line:
    ours = [result for result in results if result.is_ours]
    others = [result for result in results if not result.is_ours]
    by_database = {
        kind: [result for result in ours if result.database == kind]
        for kind in ("mariadb", "sqlite")
    }
    here = series(by_database["mariadb"], figure.key)
    there = series(others, figure.key)
    base = series(others, figure.compares_with)
    reached = ratio = ABSENT
    if here:
        reached = REACHED[figure.judge(median(here), median(base) if base else None)]
        if base and median(base):
            ratio = f"{median(here) / median(base):.2f}"
    return Line(
        figure=figure.title,
        must=_target(figure, figure.must),
        aim=_target(figure, figure.aim),
        mariadb=_cell(figure, here, row, by_database["mariadb"]),
        reached=reached,
        sqlite=_cell(figure, series(by_database["sqlite"], figure.key), row, by_database["sqlite"]),
        beside=_cell(figure, there, row, others),
        ratio=ratio,
    )


def _cell(figure: Figure, values: list[float], row: str | None, results: list[Result]) -> str:
    """Return the median, each run, and errors; these only in the first line of a row."""
    texts = []
    if values:
        texts.append(f"{_number(figure, median(values))} {figure.unit}".strip())
    if len(values) > 1:
        texts.append("(" + ", ".join(_number(figure, value) for value in values) + ")")
    failures = [result.failures[row] for result in results if row in result.failures]
    texts += [f"**failed:** {' '.join(sentence.split())}" for sentence in failures]
    return " ".join(texts)


def _target(figure: Figure, value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:g} x other" if figure.is_relative else f"{value:g} {figure.unit}".strip()


def _number(figure: Figure, value: float) -> str:
    return f"{value:,.{figure.digits}f}"


def _preface(results: Sequence[Result]) -> list[str]:
    """Return when, where and how it was measured."""
    first = results[0]
    runs = max(result.run for result in results)
    settings = dict.fromkeys(result.settings for result in results if result.is_ours)
    strangers = max((max(r.strangers.values(), default=0.0) for r in results), default=0.0)
    return [
        f"- {first.at}, {first.mode} mode, runs: {runs}; median (each run)",
        *[f"- {text}" for text in first.machine.lines()],
        f"- other work took at most {strangers:.0%} of the machine during a row",
        *[f"- {text}" for text in settings],
        f"- load generator against the sink alone: {min(r.ceiling for r in results):,.0f}/s",
    ]


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
