"""Provide the broker, database and sink with which a row is measured."""

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
    """Amounts to measure."""

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
    """Maximum tries of a row until other work does not disturb it."""


TINY = Sizes("tiny", 20, 60, 200, 1_000, 1.0, 1.0, 1_000)
QUICK = Sizes("quick", 500, 4_000, 6_000, 5_000, 4.0, 8.0, 100_000)
FULL = Sizes("full", 2_000, 20_000, 40_000, 5_000, 30.0, 30.0, 10_000_000, tries=3)


@dataclass(slots=True)
class Stage:
    """A started broker with its environment: one for each broker, database and run."""

    broker: Broker
    database: Database
    sink: Sink
    folder: Path
    sizes: Sizes
    tell: Tell = quietly
    """Called with the progress of the present row."""
    values: Values = field(default_factory=dict)
    """Values of earlier rows of this run."""
    _messages: int = 1
    _consumers: "itertools.count[int]" = field(default_factory=itertools.count)

    def consumers(
        self,
        *manners: Manner,
        timeout_ms: int = 15_000,
        settings: Mapping[str, Any] | None = None,
        each: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Register exactly these consumers; returns their numbers in the sink.

        ``settings`` are those of all consumers, ``each`` has those of every single one.
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
        """Publish `count` messages and watch for them at `consumers` (see `bench.load.Plan`)."""
        first, self._messages = self._messages, self._messages + count
        where = route or self.broker.single()
        plan = Plan(where, first, count, connections=connections, rate=rate, together=together)
        return Following(plan, self.sink.log, consumers)

    def run(self, count: int, consumers: Sequence[int], *, rate: float | None = None) -> Flow:
        """Publish messages, one per request, and wait until they are delivered."""
        with self.follow(count, consumers, rate=rate) as following:
            return following.finish(self.tell)

    def look(self) -> cpu.Snapshot:
        """CPU time of the broker and of the database server."""
        return cpu.look({"database": self.database.pids, **self.broker.processes()})

    def ours(self) -> cpu.Snapshot:
        """CPU time of all measured processes: broker, database, sink, harness."""
        snapshot = cpu.look({"sink": [self.sink.pid]})
        return cpu.Snapshot(
            {**self.look().seconds, **snapshot.seconds, "harness": {0: cpu.harness()}}
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement and its figures."""

    key: str
    figures: tuple[Figure, ...]
    run: Callable[[Stage], Mapping[str, float]]
    """May raise BenchError, whose message is then shown in the table. The broker is started
    before, and must be running without a backlog afterwards."""
    in_quick: bool = True
    """Whether it is part of the quick mode."""
    on_sqlite: bool = True
    """Whether it is also measured on SQLite."""
    quick_on_sqlite: bool = False
    """Whether the quick mode includes it on SQLite."""
    ours_alone: bool = False
    """It uses Hookstation's tables, so it cannot measure another broker."""
