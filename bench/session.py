"""Run every scenario for every broker and database, in every run."""

import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import databases, machine
from bench.adapters import BenchError, Broker, Route, one
from bench.broker import Hookstation
from bench.console import Bar
from bench.databases import Kind
from bench.load import Following, Plan
from bench.results import Result
from bench.sink import Sink
from bench.stage import FULL, Scenario, Sizes, Stage

PREFIX = "hookstation-bench-"
BUSY = 0.05
"""Share of the machine that other work may take before a scenario is measured again."""
MAX_REPEATED_S = 120.0
"""Scenarios that took more seconds than this are not repeated."""
CEILING_MESSAGES = 10_000
CEILING_FIRST = 10**9
"""First number of these messages; those of the scenarios begin at 1."""


@dataclass(frozen=True, slots=True)
class Contestant:
    broker: type[Broker]
    kind: Kind

    @property
    def is_hookstation(self) -> bool:
        return self.broker is Hookstation

    def can(self, scenario: Scenario) -> bool:
        """Whether the scenario can be measured."""
        is_possible = self.is_hookstation or not scenario.hookstation_only
        return is_possible and (self.kind != "sqlite" or scenario.on_sqlite)

    def is_quick(self, scenario: Scenario) -> bool:
        """Whether the scenario is part of the quick mode."""
        return scenario.in_quick and (self.kind != "sqlite" or scenario.quick_on_sqlite)


@dataclass(frozen=True, slots=True)
class Session:
    contestants: Sequence[Contestant]
    scenarios: Sequence[Scenario]
    sizes: Sizes
    runs: int
    keep: Path
    """Folder for the results, each written as soon as it is complete."""
    only: Collection[str] = ()
    """Keys of the requested scenarios; empty: those of the mode."""

    def steps(self) -> int:
        return self.runs * sum(len(self._scenarios(who)) for who in self.contestants)

    def run(self, bar: Bar) -> list[Result]:
        """Measure everything. Contestants take turns, so that other load affects all of them."""
        results = []
        for run in range(1, self.runs + 1):
            for who in self.contestants:
                result = self._measure_all(run, who, bar)
                result.save(self.keep)
                results.append(result)
        return results

    def _scenarios(self, who: Contestant) -> list[Scenario]:
        possible = [it for it in self.scenarios if who.can(it)]
        if self.only:
            return [it for it in possible if it.key in self.only]
        return [it for it in possible if self.sizes is FULL or who.is_quick(it)]

    def _measure_all(self, run: int, who: Contestant, bar: Bar) -> Result:
        """Measure all scenarios of one broker, freshly started on an empty database."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
            described = machine.describe(folder)
            database = stack.enter_context(databases.fresh(who.kind, folder))
            sink = stack.enter_context(Sink())
            result = Result(
                broker=who.broker.name,
                database=who.kind,
                is_hookstation=who.is_hookstation,
                mode=self.sizes.name,
                run=run,
                at=datetime.now(UTC).isoformat(timespec="seconds"),
                machine=described,
                settings=database.describe(),
                ceiling=ceiling(sink),
            )
            bar.say(f"{who.broker.name} on {result.settings}, run {run} of {self.runs}")
            broker = who.broker(database.url, folder)
            stack.callback(broker.stop)
            stage = Stage(broker, database, sink, self.sizes, values=result.values)
            try:
                broker.start()
            except BenchError as error:
                bar.say(f"  {error}")
                result.failures |= {it.key: str(error) for it in self._scenarios(who)}
                return result
            for scenario in self._scenarios(who):
                _measure(scenario, stage, result, bar)
            return result


def ceiling(sink: Sink) -> float:
    """Return requests per second from the load generator directly to the sink."""
    route = Route("127.0.0.1", sink.port, "/take/0", {}, one, accepted=(200,))
    plan = Plan(route, first=CEILING_FIRST, count=CEILING_MESSAGES)
    with Following(plan, sink.log, [0]) as following:
        return following.finish().accepted_rate


@dataclass(frozen=True, slots=True)
class _Try:
    values: Mapping[str, float]
    failure: str
    seconds: float
    other_work: float | None
    """Share of the machine that other work took; None if one of the measured processes ended."""


def _measure(scenario: Scenario, stage: Stage, result: Result, bar: Bar) -> None:
    """Measure one scenario. Its errors are shown in the table, and the other scenarios continue.

    A scenario that other work disturbed is measured again, as often as the mode allows; the least
    disturbed try counts. A failure always counts.
    """
    tries: list[_Try] = []
    with bar.step(scenario.key) as stage.progress:
        while len(tries) < stage.sizes.tries:
            tries.append(_try(scenario, stage, result.machine.cores))
            last = tries[-1]
            if last.failure or (last.other_work or 0.0) <= BUSY or last.seconds > MAX_REPEATED_S:
                break
    best = last if last.failure else min(tries, key=lambda it: it.other_work or 0.0)
    result.seconds[scenario.key] = sum(it.seconds for it in tries)
    if best.other_work is not None:
        result.other_work[scenario.key] = best.other_work
    if best.failure:
        result.failures[scenario.key] = best.failure
    else:
        result.values |= {f"{scenario.key}.{name}": value for name, value in best.values.items()}
    seconds = f"{result.seconds[scenario.key]:5.0f} s"
    bar.say(f"  {scenario.key:12} {seconds}  {_summary(scenario, result)}")


def _try(scenario: Scenario, stage: Stage, cores: int) -> _Try:
    values: Mapping[str, float] = {}
    failure = ""
    busy, ours, start = machine.machine_cpu_s(), stage.all_cpu_times(), time.monotonic()
    try:
        values = scenario.run(stage)
    except BenchError as error:
        failure = str(error)
    except Exception as error:  # an error in a scenario must not stop the others
        failure = f"{type(error).__name__}: {error}"
    after, seconds = stage.all_cpu_times(), time.monotonic() - start
    if not after.has_all_of(ours):
        return _Try(values, failure, seconds, None)
    other_s = machine.machine_cpu_s() - busy - sum(after.since(ours).values())
    return _Try(values, failure, seconds, max(0.0, other_s / (seconds * cores)))


def _summary(scenario: Scenario, result: Result) -> str:
    if scenario.key in result.failures:
        return f"FAILED: {result.failures[scenario.key]}"
    found = [
        f"{figure.name} {figure.format(result.values[key])} {figure.unit}"
        for figure in scenario.figures
        if (key := scenario.key_of(figure)) in result.values and not figure.title.startswith("- ")
    ]
    if (share := result.other_work.get(scenario.key, 0.0)) > BUSY:
        found.append(f"(other work took {share:.0%} of the machine)")
    return ", ".join(found)
