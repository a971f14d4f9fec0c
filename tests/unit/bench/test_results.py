"""The results table: values, runs, verdicts, failures and the comparison with another broker."""

from pathlib import Path

import pytest

from bench import results
from bench.__main__ import main
from bench.adapters import BenchError
from bench.machine import Machine
from bench.results import Result
from bench.scenarios import SCENARIOS
from bench.stage import Figure, Scenario, Stage, Values

BEGIN, END = results.BEGIN.format("bench"), results.END.format("bench")
MACHINE = Machine("A processor", 2, 8.0, "Linux 6", "3.11.7", 35.0, 0.1)


def nothing(stage: Stage) -> Values:
    return {}


SAMPLE = (
    Scenario(
        "one",
        nothing,
        [
            Figure("rate", "messages/s", "/s", 2.5, 4.0, better="more", reference="one.rate"),
            Figure("cpu", "CPU", "ms", 0.75, 0.4, digits=2),
            Figure("cpu_web", "- of it web", "ms", digits=2),
        ],
    ),
    Scenario("idle", nothing, [Figure("cpu", "idle", "%", 3.0, 1.0)]),
)


def result(database: str = "mariadb", run: int = 1, ours: bool = True, **values: float) -> Result:
    return Result(
        broker="Ours",
        database=database,
        is_hookstation=ours,
        mode="quick",
        run=run,
        at="2026-01-01T00:00:00+00:00",
        machine=MACHINE,
        settings=f"{database} settings",
        ceiling=20_000.0,
        values={f"one.{name}": value for name, value in values.items()},
    )


def cells(text: str, figure: str) -> list[str]:
    """Return the cells of one line of the Markdown table."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {figure} |")]
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_a_figure_shows_its_median_each_run_and_what_it_reaches() -> None:
    runs = [result(run=run, cpu=cpu, cpu_web=0.1) for run, cpu in ((1, 0.9), (2, 0.3), (3, 0.5))]
    text = results.markdown(SAMPLE, [*runs, result("sqlite", cpu=1.5)])

    assert cells(text, "CPU") == [
        "CPU",
        "0.75 ms",
        "0.4 ms",
        "0.50 ms (0.90, 0.30, 0.50)",
        "must",
        "1.50 ms",
    ]
    assert cells(text, "- of it web")[1:5] == ["", "", "0.10 ms (0.10, 0.10, 0.10)", ""]
    assert "| idle |" not in text, "nobody has measured it"
    assert "other broker" not in text
    assert "mariadb settings" in text
    assert "sqlite settings" in text


def test_another_broker_gets_columns_and_relative_targets_a_verdict() -> None:
    text = results.markdown(SAMPLE, [result(rate=5_000, cpu=2), result(ours=False, rate=1_000)])

    assert cells(text, "messages/s")[1:] == [
        "2.5 x other",
        "4 x other",
        "5,000 /s",
        "aim",
        "",
        "1,000 /s",
        "5.00",
    ]
    assert cells(text, "CPU")[4] == "**no**"


def test_a_scenario_that_failed_says_why_in_its_place() -> None:
    failed = result(run=2)
    failed.failures["one"] = "LOST: 3 deliveries\nof acknowledged messages | never came."
    text = results.markdown(SAMPLE, [result(rate=5_000), failed])

    assert (
        "5,000 /s **failed:** LOST: 3 deliveries of acknowledged messages \\| never came." in text
    )


def test_the_terminal_shows_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = result(cpu=0.9).save(tmp_path)
    assert main(["--from", str(path), "--output", str(tmp_path / "page.md")]) == 0
    said = capsys.readouterr().out

    assert "0.900 ms" in said
    assert "no" in said
    assert "A processor, 2 cores" in said
    assert "**" not in said


def test_the_page_keeps_what_people_wrote(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\n\nalso mine\n")
    results.write(page, "new", "bench")
    results.write(page, "newer", "bench")

    assert page.read_text() == (f"# Mine\n\n{BEGIN}\n\nnewer\n\n{END}\n\nalso mine\n")


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n")
    with pytest.raises(BenchError, match="has no lines"):
        results.write(page, "new", "bench")
    assert page.read_text() == "# Mine\n"


def test_a_table_can_be_made_of_results_that_were_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(result(run=run, cpu=run / 10).save(tmp_path)) for run in (1, 2, 3)]
    page = tmp_path / "page.md"

    assert main(["--from", *paths, "--output", str(page)]) == 0
    assert "0.200 ms (0.100, 0.200, 0.300)" in page.read_text()
    assert "0.200 ms" in capsys.readouterr().out


def test_what_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"broker": 1}')

    with pytest.raises(SystemExit, match=r"x\.json holds no result"):
        main(["--from", str(path)])


def test_an_unknown_adapter_is_named() -> None:
    with pytest.raises(SystemExit, match=r"--beside no\.such:Thing"):
        main(["--beside", "no.such:Thing"])


def test_every_scenario_and_figure_has_a_name_of_its_own() -> None:
    keys = [scenario.key for scenario in SCENARIOS]
    figures = [scenario.key_of(figure) for scenario in SCENARIOS for figure in scenario.figures]
    assert len(set(keys)) == len(keys)
    assert len(set(figures)) == len(figures)
