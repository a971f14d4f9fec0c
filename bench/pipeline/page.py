"""Format the findings as two tables for docs/performance.md and the terminal."""

from collections.abc import Sequence

from bench.pipeline.delivering import RATE
from bench.pipeline.findings import Answer, Findings
from bench.pipeline.questions import QUESTIONS

MIB = 1 << 20
TITLES = {question.name: question.title for question in QUESTIONS}


def markdown(found: Findings) -> str:
    """Return the machine, the comparison of each question, and its growth with the data."""
    sizes = list(dict.fromkeys(answer.attempts for answer in found.answers))
    beside = [answer for answer in found.answers if answer.mariadb_s is not None]
    lines = [
        f"- {found.at}",
        *[f"- {text}" for text in found.machine.lines()],
        f"- {found.settings}",
        "- other work took at most "
        f"{max((it.strangers for it in found.answers), default=0):.0%} of the machine",
        "",
    ]
    if beside:
        lines += [*_beside(beside), ""]
    if found.answers:
        lines += [*_growth(found.answers, sizes), ""]
    if found.spells:
        lines += _delivering(found)
    return "\n".join([*lines, *(f"**failed:** {text}" for text in found.failures)]).rstrip()


def _beside(answers: Sequence[Answer]) -> list[str]:
    head = (
        "question",
        "rows",
        "job",
        "rows/s",
        "MariaDB itself",
        "times the job",
        "DuckDB",
        "database's CPU: job",
        "asked itself",
    )
    table = [
        f"With {answers[0].attempts:,} attempts:",
        "",
        _line(head),
        "|---" * len(head) + "|",
    ]
    for it in answers:
        table.append(
            _line(
                (
                    TITLES[it.question],
                    f"{it.rows:,}",
                    f"{it.seconds:.1f} s",
                    f"{it.rows / it.seconds:,.0f}",
                    _seconds(it.mariadb_s),
                    f"{it.mariadb_s / it.seconds:.2f}" if it.mariadb_s is not None else "",
                    _seconds(it.duckdb_s),
                    f"{it.database_cpu_s:.1f} s",
                    _seconds(it.mariadb_cpu_s),
                )
            )
        )
    return table


def _growth(answers: Sequence[Answer], sizes: Sequence[int]) -> list[str]:
    head = ["question", *[f"{size / 1e6:g} million" for size in sizes]]
    head += ["time / data, last step", "driver", "Java", "workers"]
    table = ["Seconds by attempts, and memory at each of these sizes in MiB:", ""]
    table += [_line(head), "|---" * len(head) + "|"]
    for name in dict.fromkeys(answer.question for answer in answers):
        mine = {it.attempts: it for it in answers if it.question == name}
        row = [TITLES[name]]
        row += [_cell(mine.get(size)) for size in sizes]
        row.append(_slope([mine[size] for size in sizes if size in mine]))
        for part in ("driver_bytes", "jvm_bytes", "workers_bytes"):
            row.append(" / ".join(f"{getattr(it, part) / MIB:,.0f}" for it in mine.values()))
        table.append(_line(row))
    return table


def _delivering(found: Findings) -> list[str]:
    head = ("meanwhile", "POST sent to POST received, p50", "p99", "seconds", "rows deleted/s")
    table = [
        f"Beside {RATE} messages a second, with {found.deliver_attempts:,} attempts:",
        "",
        _line(head),
        "|---" * len(head) + "|",
    ]
    for it in found.spells:
        speed = f"{it.rows / it.seconds:,.0f}" if it.rows else ""
        row = (it.name, f"{it.p50_ms:.1f} ms", f"{it.p99_ms:.1f} ms", f"{it.seconds:.0f}", speed)
        table.append(_line(row))
    return table


def _cell(answer: Answer | None) -> str:
    if answer is None:
        return ""
    if answer.failures:
        return f"**failed:** {' '.join(answer.failures)}"
    return f"{answer.seconds:.1f}"


def _slope(answers: Sequence[Answer]) -> str:
    """Return the ratio of times at the last two sizes, with the ratio of the sizes."""
    if len(answers) < 2 or not answers[-2].seconds:
        return ""
    last, before = answers[-1], answers[-2]
    return f"{last.seconds / before.seconds / (last.attempts / before.attempts):.2f}"


def _seconds(value: float | None) -> str:
    return f"{value:.1f} s" if value is not None else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
