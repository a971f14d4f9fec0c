"""Run every row for every broker and database, in every run."""

import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import cpu, databases, machine
from bench.adapters import BenchError, Broker, Route, one
from bench.broker import Hookstation
from bench.databases import Kind
from bench.flow import Following
from bench.load import Plan
from bench.progress import Bar
from bench.results import Result
from bench.sink import Sink
from bench.stage import FULL, Row, Sizes, Stage, Values

PREFIX = "hookstation-bench-"
BUSY = 0.05
"""Share of the machine that other work may take before a row is measured again."""
PATIENCE_S = 120.0
"""Rows that took more seconds than this are not repeated."""
CEILING_MESSAGES = 10_000
CEILING_FIRST = 10**9


@dataclass(frozen=True, slots=True)
class Contestant:
    """A broker on a kind of database."""

    broker: type[Broker]
    kind: Kind

    @property
    def is_ours(self) -> bool:
        """Whether it is Hookstation, to which the targets apply."""
        return self.broker is Hookstation

    def can(self, row: Row) -> bool:
        """Whether the row can be measured."""
        return (self.is_ours or not row.ours_alone) and (self.kind != "sqlite" or row.on_sqlite)

    def is_quick(self, row: Row) -> bool:
        """Whether the row is part of the quick mode."""
        return row.in_quick and (self.kind != "sqlite" or row.quick_on_sqlite)


@dataclass(frozen=True, slots=True)
class Session:
    """What to measure."""

    contestants: Sequence[Contestant]
    rows: Sequence[Row]
    sizes: Sizes
    runs: int
    keep: Path
    """Folder for the results, each written as soon as it is complete."""
    only: Collection[str] = ()
    """Keys of the requested rows; empty: those of the mode."""

    def parts(self) -> int:
        """Number of rows that will be measured."""
        return self.runs * sum(len(self._rows(who)) for who in self.contestants)

    def run(self, bar: Bar) -> list[Result]:
        """Measure everything. Contestants take turns, so that other load affects all of them."""
        results = []
        for run in range(1, self.runs + 1):
            for who in self.contestants:
                result = self._turn(run, who, bar)
                result.save(self.keep)
                results.append(result)
        return results

    def _rows(self, who: Contestant) -> list[Row]:
        possible = [row for row in self.rows if who.can(row)]
        if self.only:
            return [row for row in possible if row.key in self.only]
        return [row for row in possible if self.sizes is FULL or who.is_quick(row)]

    def _turn(self, run: int, who: Contestant, bar: Bar) -> Result:
        """Measure all rows of one broker, freshly started on an empty database."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
            found = machine.describe(folder)
            database = stack.enter_context(databases.fresh(who.kind, folder))
            sink = stack.enter_context(Sink())
            result = Result(
                broker=who.broker.name,
                database=who.kind,
                is_ours=who.is_ours,
                mode=self.sizes.name,
                run=run,
                at=datetime.now(UTC).isoformat(timespec="seconds"),
                machine=found,
                settings=database.describe(),
                ceiling=ceiling(sink),
            )
            bar.say(f"{who.broker.name} on {result.settings}, run {run} of {self.runs}")
            broker = who.broker(database.url, folder)
            stack.callback(broker.stop)
            stage = Stage(broker, database, sink, folder, self.sizes, values=result.values)
            rows = self._rows(who)
            try:
                broker.start()
            except BenchError as error:
                bar.say(f"  {error}")
                result.failures |= dict.fromkeys((row.key for row in rows), str(error))
                return result
            for row in rows:
                _measure(row, stage, result, bar)
            return result


@dataclass(frozen=True, slots=True)
class _Try:
    """One measurement of a row."""

    values: Mapping[str, float]
    failure: str
    seconds: float
    strangers: float | None
    """Share of the machine that other work took; None if one of the measured processes ended."""


def _measure(row: Row, stage: Stage, result: Result, bar: Bar) -> None:
    """Measure one row. Its errors are shown in the table, and the other rows continue.

    A row that other work disturbed is measured again, as often as the mode allows; the least
    disturbed try counts. A failure always counts.
    """
    tries: list[_Try] = []
    with bar.row(row.key) as stage.tell:
        while len(tries) < stage.sizes.tries:
            tries.append(_try(row, stage, result.machine.cores))
            last = tries[-1]
            if last.failure or (last.strangers or 0.0) <= BUSY or last.seconds > PATIENCE_S:
                break
    best = last if last.failure else min(tries, key=lambda it: it.strangers or 0.0)
    result.seconds[row.key] = sum(it.seconds for it in tries)
    if best.strangers is not None:
        result.strangers[row.key] = best.strangers
    if best.failure:
        result.failures[row.key] = best.failure
    else:
        result.values.update(best.values)
    bar.say(f"  {row.key:12} {result.seconds[row.key]:5.0f} s  " + _brief(row, result))


def _try(row: Row, stage: Stage, cores: int) -> _Try:
    values, failure = Values(), ""
    busy, ours, start = cpu.machine(), stage.ours(), time.monotonic()
    try:
        values.update(row.run(stage))
    except BenchError as error:
        failure = str(error)
    except Exception as error:  # an error in a row must not stop the others
        failure = f"{type(error).__name__}: {error}"
    after, seconds = stage.ours(), time.monotonic() - start
    if not after.has_all_of(ours):
        return _Try(values, failure, seconds, None)
    strange = cpu.machine() - busy - sum(after.since(ours).values())
    return _Try(values, failure, seconds, max(0.0, strange / (seconds * cores)))


def _brief(row: Row, result: Result) -> str:
    """Return the main figures of a row in one line, or its error."""
    if row.key in result.failures:
        return f"FAILED: {result.failures[row.key]}"
    found = [
        f"{figure.key.partition('.')[2]} {result.values[figure.key]:,.{figure.digits}f} "
        + figure.unit
        for figure in row.figures
        if figure.key in result.values and not figure.title.startswith("- ")
    ]
    if (share := result.strangers.get(row.key, 0.0)) > BUSY:
        found.append(f"(other work took {share:.0%} of the machine)")
    return ", ".join(found)


def ceiling(sink: Sink) -> float:
    """Return requests per second from the load generator directly to the sink."""
    route = Route("127.0.0.1", sink.port, "/take/0", {}, one, accepted=(200,))
    # Separate numbers, since those of the measurements begin at 1.
    plan = Plan(route, first=CEILING_FIRST, count=CEILING_MESSAGES)
    with Following(plan, sink.log, [0]) as following:
        flow = following.finish()
    return len(flow.sent) / flow.accepting_seconds
