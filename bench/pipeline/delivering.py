"""Measure how long messages take while jobs run, and while the broker prunes its tables."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.adapters import BenchError
from bench.broker import Hookstation
from bench.databases import ROOT, Database
from bench.figures import percentile
from bench.sink import Sink
from bench.stage import QUICK, Stage

RATE = 50
"""Messages per second."""
SPELL_S, ALONE_S = 4, 20
NICE = ("nice", "-n", "5")
"""The niceness with which the broker starts its jobs (docs/pipeline.md)."""
PATIENCE_S = 900


@dataclass(slots=True)
class Spell:
    """Latencies of messages delivered during one activity."""

    name: str
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    seconds: float = 0.0
    rows: int = 0
    """Rows deleted meanwhile; 0 where none are."""


@dataclass(slots=True)
class Delivering:
    """The broker on that database, a consumer, and the jobs that run beside them."""

    database: Database
    broker: Hookstation
    sink: Sink
    stage: Stage = field(init=False)

    def __post_init__(self) -> None:
        folder = self.broker.folder
        self.stage = Stage(self.broker, self.database, self.sink, folder, QUICK)

    def measure(self, left: Callable[[], int]) -> list[Spell]:
        """Measure without a job, beside `usage`, beside `archive`, and while rows are deleted.

        ``left`` returns the number of segments not pruned yet. Raises BenchError.
        """
        (consumer,) = self.stage.consumers("take")
        self._flow("warm", consumer, lambda: True, ALONE_S)
        spells = [self._flow("nothing else", consumer, lambda: True, ALONE_S)]
        for job in ("usage", "archive"):
            spells.append(self._beside(job, consumer))
        before, start = left(), time.monotonic()
        spells.append(self._flow("pruning", consumer, lambda: left() == 0, PATIENCE_S))
        spells[-1].rows, spells[-1].seconds = before, time.monotonic() - start
        return spells

    def _beside(self, job: str, consumer: int) -> Spell:
        command = [*NICE, sys.executable, "-m", "pipeline", job]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.broker.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                spell = self._flow(job, consumer, lambda: process.poll() is not None, PATIENCE_S)
            finally:
                process.terminate()
        if process.returncode:
            raise BenchError(f"{job} ended with {process.returncode}.")
        return spell

    def _flow(self, name: str, consumer: int, over: Callable[[], bool], seconds: float) -> Spell:
        """Send messages until it is over: at least one round, and at most for ``seconds``."""
        latencies: list[float] = []
        start = time.monotonic()
        alone = name in {"warm", "nothing else"}
        while True:
            flow = self.stage.run(RATE * SPELL_S, [consumer], rate=RATE)
            latencies += flow.latencies_ms(consumer)
            spent = time.monotonic() - start
            if (over() and not alone) or spent > seconds:
                break
        return Spell(name, percentile(latencies, 0.5), percentile(latencies, 0.99), spent)
