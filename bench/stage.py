"""What a row of the table has to measure with: a broker, its database, a sink, numbers."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench import cpu
from bench.adapters import Broker, Consumer, Route
from bench.databases import Database
from bench.figures import Figure
from bench.flow import Flow, Following, Tell, quietly
from bench.load import Plan
from bench.sink import Manner, Sink

Values = dict[str, float]
"""By the key of a figure."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    name: Literal["tiny", "quick", "full"]
    warm_up: int
    """Messages before the clock starts."""
    messages: int
    """Messages of a closed loop with one consumer."""
    batch: int
    """Messages through the batch endpoint."""
    recovery: int
    """Messages in the middle of which the broker is killed."""
    latency_s: float
    """Seconds of an open loop."""
    idle_s: float
    """Seconds of nothing."""
    rows: int
    """Rows in a table that is called large."""
    tries: int = 1
    """How often a row may be measured until other work leaves it alone."""


TINY = Sizes("tiny", 20, 60, 200, 1_000, 1.0, 1.0, 1_000)
QUICK = Sizes("quick", 500, 4_000, 6_000, 5_000, 4.0, 8.0, 100_000)
FULL = Sizes("full", 2_000, 20_000, 40_000, 5_000, 30.0, 30.0, 10_000_000, tries=3)


@dataclass(slots=True)
class Stage:
    """A started broker with everything around it: one for each broker, database and run."""

    broker: Broker
    database: Database
    sink: Sink
    folder: Path
    sizes: Sizes
    tell: Tell = quietly
    """Hears how far the present row is."""
    values: Values = field(default_factory=dict)
    """What earlier rows of this run have found."""
    _messages: int = 1
    _consumers: "itertools.count[int]" = field(default_factory=itertools.count)

    def consumers(
        self,
        *manners: Manner,
        timeout_ms: int = 15_000,
        settings: Mapping[str, Any] | None = None,
        each: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Let exactly these consumers receive from now on; their numbers in the sink's books.

        ``settings`` are for all of them, ``each`` has one's own for every one.
        """
        numbers = [next(self._consumers) for _ in manners]
        self.broker.prepare(
            [
                Consumer(
                    f"{manner}-{number}",
                    self.sink.url(number, manner),
                    timeout_ms,
                    {**(settings or {}), **own},
                )
                for number, manner, own in zip(
                    numbers, manners, each or [{}] * len(manners), strict=True
                )
            ]
        )
        return numbers

    def follow(
        self,
        count: int,
        consumers: Sequence[int],
        *,
        route: Route | None = None,
        connections: int = 32,
        rate: float | None = None,
        together: int = 1,
    ) -> Following:
        """Hand in `count` messages and watch for them at `consumers` (see `bench.load.Plan`)."""
        first, self._messages = self._messages, self._messages + count
        where = route or self.broker.single()
        plan = Plan(where, first, count, connections=connections, rate=rate, together=together)
        return Following(plan, self.sink.log, consumers)

    def run(self, count: int, consumers: Sequence[int], *, rate: float | None = None) -> Flow:
        """Hand in messages, one a request, and wait until they are delivered."""
        with self.follow(count, consumers, rate=rate) as following:
            return following.finish(self.tell)

    def look(self) -> cpu.Snapshot:
        """CPU time of the broker's processes and of the database server's."""
        return cpu.look({"database": self.database.pids, **self.broker.processes()})

    def ours(self) -> cpu.Snapshot:
        """CPU time of all that belongs to the measurement: broker, database, sink, harness."""
        snapshot = cpu.look({"sink": [self.sink.pid]})
        return cpu.Snapshot(
            {**self.look().seconds, **snapshot.seconds, "harness": {0: cpu.harness()}}
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, and the figures that it fills."""

    key: str
    figures: tuple[Figure, ...]
    run: Callable[[Stage], Mapping[str, float]]
    """May raise BenchError, whose sentence then stands in the table. It finds the broker started,
    and leaves it started and without a backlog."""
    in_quick: bool = True
    """Whether it is part of the quick mode."""
    on_sqlite: bool = True
    """Whether it is measured on SQLite too."""
    quick_on_sqlite: bool = False
    """Whether that is part of the quick mode."""
    ours_alone: bool = False
    """It knows our tables, so that another broker cannot be measured."""
