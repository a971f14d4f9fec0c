"""Define scenarios with their figures, and provide what they measure: broker, database, sink."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bench import machine
from bench.adapters import BenchError, Broker, Consumer, PackBatch, Progress, Route, no_progress
from bench.broker import Hookstation
from bench.databases import Database
from bench.load import Flow, Following, Plan
from bench.machine import CpuTimes
from bench.sink import Sink

Values = dict[str, float]
"""By the name of a figure."""
Verdict = Literal["aim", "must", "missed", "unknown"]
WHOLE = ("", "/s", "messages/s", "MiB")
"""Units of which the table shows no decimals, unless the figure says so."""
GROUPS = ("web", "worker", "supervisor", "database")
"""Groups of Hookstation's processes, and its database."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. Targets have the figure's unit, unless there is a reference."""

    name: str
    """Values are stored under ``scenario.name``."""
    title: str
    """Figures below the main ones begin with a hyphen."""
    unit: str
    must: float | None = None
    aim: float | None = None
    digits: int | None = None
    """Decimal places; None: those of the unit."""
    better: Literal["less", "more"] = "less"
    reference: str = ""
    """If set, the targets are multiples of another broker's value, of this key, in the same run."""

    def format(self, value: float) -> str:
        """Return a value without its unit."""
        default = 2 if self.unit.startswith("x") else 0 if self.unit in WHOLE else 1
        return f"{value:,.{default if self.digits is None else self.digits}f}"

    def judge(self, value: float, other: float | None = None) -> Verdict:
        """Judge a value by the targets; `other` is the other broker's value."""
        if self.must is None or (self.reference and not other):
            return "unknown"
        if self.reference and other:
            value /= other
        sign = 1 if self.better == "more" else -1
        if self.aim is not None and sign * value >= sign * self.aim:
            return "aim"
        return "must" if sign * value >= sign * self.must else "missed"


def cpu_figures(unit: str = "ms", digits: int = 3) -> list[Figure]:
    """Return the figures of ``cpu_values`` without the sum."""
    return [Figure(f"cpu_{group}", f"- of it {group}", unit, digits=digits) for group in GROUPS]


def cpu_values(seconds: Mapping[str, float], factor: float) -> Values:
    """Return the sum of CPU seconds, and those of each group, multiplied by a factor."""
    each = {f"cpu_{group}": used * factor for group, used in seconds.items()}
    return {"cpu": sum(each.values()), **each}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values (0 to 1) do not exceed.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("There are no values.")
    rank = -(-len(values) * share // 1)
    return sorted(values)[max(0, int(rank) - 1)]


@dataclass(frozen=True, slots=True)
class Sizes:
    name: Literal["tiny", "quick", "full"]
    warm_up: int
    """Messages before the measurement."""
    messages: int
    """Messages of a closed loop with one consumer."""
    batch: int
    """Messages through the batch endpoint."""
    recovery: int
    """Messages during which the broker is killed."""
    latency_s: float
    """Seconds of an open loop."""
    idle_s: float
    """Seconds without load."""
    rows: int
    """Rows in a large table."""
    tries: int = 1
    """Maximum tries of a scenario until other work does not disturb it."""


TINY = Sizes("tiny", 20, 60, 200, 1_000, 1.0, 1.0, 1_000)
QUICK = Sizes("quick", 500, 4_000, 6_000, 5_000, 4.0, 8.0, 100_000)
FULL = Sizes("full", 2_000, 20_000, 40_000, 5_000, 30.0, 30.0, 10_000_000, tries=3)


@dataclass(slots=True)
class Stage:
    """A started broker with its environment: one for each broker, database and run."""

    broker: Broker
    database: Database
    sink: Sink
    sizes: Sizes
    progress: Progress = no_progress
    """Progress of the present scenario."""
    values: Values = field(default_factory=dict)
    """Values of earlier scenarios of this run, by ``scenario.figure``."""
    _messages: int = 1
    _consumers: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def hookstation(self) -> Hookstation:
        """The broker, for scenarios that measure only Hookstation."""
        assert isinstance(self.broker, Hookstation)
        return self.broker

    def consumers(
        self,
        *behaviors: str,
        timeout_ms: int = 15_000,
        settings: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Register exactly these consumers; returns their numbers in the sink.

        ``settings`` are those of all consumers, or of each one.
        """
        each = [settings] * len(behaviors) if isinstance(settings, Mapping) else settings
        numbers = [next(self._consumers) for _ in behaviors]
        self.broker.prepare(
            [
                Consumer(f"{behavior}-{number}", self.sink.url(number, behavior), timeout_ms, own)
                for number, behavior, own in zip(
                    numbers, behaviors, each or [{}] * len(behaviors), strict=True
                )
            ]
        )
        return numbers

    def batch(self, *fields: Mapping[str, Any]) -> Route:
        """Return the batch endpoint; with ``fields`` of the items, it must be Hookstation's.

        Raises BenchError when the broker has none.
        """
        route = self.broker.batch()
        if route is None:
            raise BenchError("It has no batch endpoint.")
        return replace(route, pack=PackBatch(fields)) if fields else route

    def publish(
        self, count: int, consumers: Sequence[int], route: Route | None = None, **options: Any
    ) -> Following:
        """Publish `count` messages and watch for them at `consumers`.

        The options are those of `bench.load.Plan`: connections, rate, together.
        """
        first, self._messages = self._messages, self._messages + count
        plan = Plan(route or self.broker.single(), first, count, **options)
        return Following(plan, self.sink.log, consumers)

    def deliver(
        self, count: int, consumers: Sequence[int], route: Route | None = None, **options: Any
    ) -> Flow:
        with self.publish(count, consumers, route, **options) as following:
            return following.finish(self.progress)

    def deliver_steadily(
        self, consumer: int, rate: int, seconds: float, route: Route | None = None
    ) -> Flow:
        """Publish `rate` messages per second to one consumer, after a second of warm-up."""
        self.deliver(rate, [consumer], route, rate=rate)
        return self.deliver(int(rate * seconds), [consumer], route, rate=rate)

    def cpu_times(self) -> CpuTimes:
        """CPU time of the broker and of the database server."""
        return machine.cpu_times({"database": self.database.pids, **self.broker.processes()})

    def all_cpu_times(self) -> CpuTimes:
        """CPU time of all measured processes: broker, database, sink, harness."""
        sink = machine.cpu_times({"sink": [self.sink.pid]})
        harness = {"harness": {0: machine.harness_cpu_s()}}
        return CpuTimes({**self.cpu_times().seconds, **sink.seconds, **harness})


@dataclass(frozen=True, slots=True)
class Scenario:
    key: str
    run: Callable[[Stage], Mapping[str, float]]
    """Returns values by the name of a figure. May raise BenchError, whose message is then shown in
    the table. The broker is started before, and must be running without a backlog afterwards."""
    figures: Sequence[Figure] = ()
    in_quick: bool = True
    """Whether it is part of the quick mode."""
    on_sqlite: bool = True
    """Whether it is also measured on SQLite."""
    quick_on_sqlite: bool = False
    """Whether the quick mode includes it on SQLite."""
    hookstation_only: bool = False
    """It cannot measure another broker, since it uses Hookstation's tables or settings."""

    def key_of(self, figure: Figure) -> str:
        return f"{self.key}.{figure.name}"
