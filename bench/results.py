"""Store the results of a run as JSON, and format the table for docs/performance.md."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from bench.adapters import BenchError
from bench.databases import ROOT
from bench.machine import Machine
from bench.stage import Figure, Scenario, Values, Verdict

PAGE = ROOT / "docs/performance.md"
FOLDER = ROOT / "data/bench"
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
PARTS = ("bench", "profile", "pipeline")
"""Names of the generated parts of a page."""
REACHED: dict[Verdict, str] = {"aim": "aim", "must": "must", "missed": "**no**", "unknown": ""}
HEAD = ("figure", "must reach", "we aim for", "MariaDB", "reached", "SQLite")
OTHER_HEAD = ("other broker", "ratio")


@dataclass(slots=True)
class Result:
    broker: str
    database: str
    """mariadb or sqlite."""
    is_hookstation: bool
    mode: str
    """quick or full."""
    run: int
    """From 1."""
    at: str
    """RFC 3339, UTC."""
    machine: Machine
    settings: str
    """Settings of the database, for people."""
    ceiling: float
    """Requests per second from the load generator directly to the sink."""
    values: Values = field(default_factory=dict)
    """By ``scenario.figure``."""
    failures: dict[str, str] = field(default_factory=dict)
    """Error message by scenario."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each scenario."""
    other_work: dict[str, float] = field(default_factory=dict)
    """By scenario: the share of the machine that other work took (0 to 1)."""

    def save(self, folder: Path) -> Path:
        """Write it into the folder; file names sort by time."""
        whose = "ours" if self.is_hookstation else "beside"
        return store(self, folder, f"{whose}-{self.database}-{self.run}")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load from JSON. Raises BenchError."""
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            return cls(**{**found, "machine": Machine(**found["machine"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BenchError(f"{path} holds no result of this harness: {error}") from None


def store(result: Any, folder: Path, name: str) -> Path:
    """Write a dataclass with a time ``at`` into the folder as JSON; file names sort by time."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.at.replace(':', '').replace('-', '')}-{name}.json"
    path.write_text(json.dumps(asdict(result), indent=1) + "\n")
    return path


def series(results: Iterable[Result], key: str) -> list[float]:
    """Return the values of a figure in the order of the runs, without runs that lack it."""
    return [result.values[key] for result in results if key in result.values]


def markdown(scenarios: Sequence[Scenario], results: Sequence[Result]) -> str:
    """Return when, where and how it was measured, and the table."""
    first = results[0]
    runs = max(result.run for result in results)
    other_work = max((max(it.other_work.values(), default=0.0) for it in results), default=0.0)
    preface = [
        f"{first.at}, {first.mode} mode, runs: {runs}; median (each run)",
        *first.machine.lines(),
        f"other work took at most {other_work:.0%} of the machine during a scenario",
        *dict.fromkeys(result.settings for result in results if result.is_hookstation),
        f"load generator against the sink alone: {min(it.ceiling for it in results):,.0f}/s",
    ]
    head, *rows = _table(scenarios, results)
    return "\n".join([*(f"- {text}" for text in preface), "", *markdown_table(head, rows)])


def _table(scenarios: Sequence[Scenario], results: Sequence[Result]) -> list[Sequence[str]]:
    """Return the head, and cells of each measured figure in the order of the scenarios."""
    ours = [result for result in results if result.is_hookstation]
    mariadb = [result for result in ours if result.database == "mariadb"]
    sqlite = [result for result in ours if result.database == "sqlite"]
    other = [result for result in results if not result.is_hookstation]
    rows: list[Sequence[str]] = []
    for scenario in scenarios:
        for place, figure in enumerate(scenario.figures):
            key = scenario.key_of(figure)
            # Errors are in the first line of a scenario.
            failing = None if place else scenario.key
            here, there, beside = (
                _cell(figure, series(some, key), failing, some) for some in (mariadb, sqlite, other)
            )
            if here or there or beside:
                reached, ratio = _compare(figure, series(mariadb, key), other, key)
                targets = _target(figure, figure.must), _target(figure, figure.aim)
                rows.append((figure.title, *targets, here, reached, there, beside, ratio))
    if any(row[-2] for row in rows):
        return [(*HEAD, *OTHER_HEAD), *rows]
    return [HEAD, *(row[: len(HEAD)] for row in rows)]


def _compare(
    figure: Figure, values: list[float], other: Sequence[Result], key: str
) -> tuple[str, str]:
    if not values:
        return "", ""
    reference = series(other, figure.reference or key)
    base = median(reference) if reference else None
    ratio = f"{median(values) / base:.2f}" if base else ""
    return REACHED[figure.judge(median(values), base)], ratio


def _cell(
    figure: Figure, values: list[float], scenario: str | None, results: Sequence[Result]
) -> str:
    texts = [f"{figure.format(median(values))} {figure.unit}".strip()] if values else []
    if len(values) > 1:
        texts.append("(" + ", ".join(map(figure.format, values)) + ")")
    failures = [result.failures[scenario] for result in results if scenario in result.failures]
    texts += [f"**failed:** {' '.join(sentence.split())}" for sentence in failures]
    return " ".join(texts)


def _target(figure: Figure, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:g} x other" if figure.reference else f"{value:g} {figure.unit}".strip()


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head_line, *lines = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, *rows)
    )
    return [head_line, "|---" * len(head) + "|", *lines]


def write(path: Path, text: str, name: str) -> None:
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
