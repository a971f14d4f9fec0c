"""The benchmark from start to end, with tiny numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench import machine, session
from bench.adapters import BenchError
from bench.console import Bar
from bench.databases import ROOT
from bench.results import Result
from bench.scenarios import throughput
from bench.session import Contestant, Session, _Try
from bench.stage import TINY, Figure, Scenario, Stage, Values
from tests.e2e.direct import Direct


@pytest.fixture(autouse=True)
def _few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the load generator without a broker in a moment."""
    monkeypatch.setattr(session, "CEILING_MESSAGES", 100)


def measure(
    folder: Path, *scenarios: Scenario, broker: type[Direct] = Direct, runs: int = 1
) -> list[Result]:
    keys = [it.key for it in scenarios]
    found = Session([Contestant(broker, "sqlite")], scenarios, TINY, runs, folder, keys)
    with Bar(Console(quiet=True), found.steps()) as bar:
        return found.run(bar)


def scenario(key: str, values: Values | Exception) -> Scenario:
    """A scenario that returns these values, or raises this error."""

    def run(stage: Stage) -> Values:
        if isinstance(values, Exception):
            raise values
        return values

    return Scenario(key, run, [Figure("x", key, "ms")])


def test_values_come_out_and_are_kept(tmp_path: Path) -> None:
    first, second = measure(tmp_path, throughput.ONE, runs=2)

    assert (first.run, second.run) == (1, 2)
    assert first.values["one.rate"] > 0
    assert first.values["one.twice"] == 0
    assert first.failures == {}
    assert first.ceiling > 0
    kept = [Result.load(path) for path in sorted(tmp_path.glob("*.json"))]
    assert kept == [first, second]


@pytest.mark.parametrize("error", [BenchError("Lost all."), ZeroDivisionError("division by zero")])
def test_a_scenario_that_fails_costs_the_others_nothing(tmp_path: Path, error: Exception) -> None:
    (found,) = measure(tmp_path, scenario("a", error), scenario("b", {"x": 1.0}))

    assert str(error) in found.failures["a"]
    assert found.values == {"b.x": 1.0}
    assert str(error) in next(tmp_path.glob("*.json")).read_text()


def test_a_broker_that_does_not_start_is_reported_for_each_scenario(tmp_path: Path) -> None:
    stopped = []

    class Broken(Direct):
        def start(self) -> None:
            raise BenchError("It does not start.")

        def stop(self) -> None:
            stopped.append(True)

    (found,) = measure(tmp_path, scenario("a", {}), scenario("b", {}), broker=Broken)

    assert found.failures == dict.fromkeys("ab", "It does not start.")
    assert stopped


@pytest.mark.parametrize(
    ("tries", "kept", "count"),
    [
        ([_Try({"x": 1.0}, "", 1.0, 0.4), _Try({"x": 2.0}, "", 1.0, 0.01)], 2.0, 2),
        ([_Try({"x": share}, "", 1.0, share) for share in (0.4, 0.2, 0.3)], 0.2, 3),
        ([_Try({"x": 1.0}, "", 1.0, 0.4), _Try({}, "Lost one.", 1.0, 0.9)], None, 2),
        ([_Try({"x": 1.0}, "", 1000.0, 0.4)], 1.0, 1),
    ],
)
def test_what_other_work_disturbed_is_measured_again(
    tries: list[_Try],
    kept: float | None,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = list(tries)
    monkeypatch.setattr(session, "_try", lambda *_: left.pop(0))
    monkeypatch.setattr(sys.modules[__name__], "TINY", replace(TINY, tries=3))

    (result,) = measure(tmp_path, scenario("a", {}))

    assert len(tries) - len(left) == count
    assert result.values.get("a.x") == kept
    assert ("a" in result.failures) == (kept is None)


def test_which_scenarios_are_measured() -> None:
    on_mariadb, on_sqlite = Contestant(Direct, "mariadb"), Contestant(Direct, "sqlite")
    assert not on_mariadb.can(Scenario("a", lambda stage: {}, hookstation_only=True))
    assert on_mariadb.can(Scenario("a", lambda stage: {}, on_sqlite=False))
    assert not on_sqlite.can(Scenario("a", lambda stage: {}, on_sqlite=False))
    assert on_mariadb.is_quick(Scenario("a", lambda stage: {}))
    assert not on_sqlite.is_quick(Scenario("a", lambda stage: {}))


def harness(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench", "--mode", "tiny", "--database", "sqlite"]
    places = ["--output", str(folder / "page.md"), "--keep", str(folder / "kept")]
    return subprocess.Popen(
        [*command, *places, *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.e2e
def test_the_real_broker_is_measured_beside_another(tmp_path: Path) -> None:
    only = [f"--only={key}" for key in ("one", "batch", "latency50", "recovery")]
    with harness(tmp_path, "--beside", "tests.e2e.direct:Direct", *only) as process:
        said, _ = process.communicate(timeout=400)

    # The other broker has no batch endpoint, and its scenario says so.
    assert process.returncode == 1, said
    ours, other = (
        json.loads(next((tmp_path / "kept").glob(f"*-{whose}-*")).read_text())
        for whose in ("ours", "beside")
    )
    assert ours["failures"] == {}
    assert other["failures"]["batch"] == "It has no batch endpoint."
    values = ours["values"]
    named = ("one.rate", "one.cpu", "one.cpu_web", "one.cpu_worker")
    more = ("batch.rate", "batch.ratio", "latency50.p50", "latency50.p99", "recovery.seconds")
    assert [key for key in (*named, *more) if not values[key] > 0] == []
    assert values["recovery.lost"] == 0
    page = (tmp_path / "page.md").read_text()
    assert "| other broker | ratio |" in page
    assert "CPU per delivered message" in page
    assert [path.name for path in tmp_path.glob("hookstation-bench-*")] == []


@pytest.mark.e2e
def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    with harness(tmp_path, "--only", "isolation") as process:
        below: list[int] = []
        end = time.monotonic() + 300
        while not any("granian" in machine.command_line(pid) for pid in below):
            assert time.monotonic() < end, "the broker was not started"
            below = machine.descendants(process.pid)
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=200)

    assert process.returncode == 130, said
    assert [pid for pid in below if machine.command_line(pid)] == []
