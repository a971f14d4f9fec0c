"""A job in its own process, as people run it, killed at a given failpoint."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from delivery.models import PipelineLock
from pipeline.broker import runs
from pipeline.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300
ON_EXECUTORS = {"in_export"}
"""Failpoints that executors reach."""


class Process:
    """`python -m pipeline JOB` on the test's database, or a similar command."""

    def __init__(
        self,
        address: str,
        chosen: Settings,
        folder: Path,
        *words: str,
        command: Sequence[str] = ("-m", "pipeline"),
    ) -> None:
        self.words = (*command, *words)
        self.point = folder / "failpoint"
        self.log = folder / "log"
        self.environment = os.environ | {
            "DATABASE_URL": address,
            "HOOKSTATION_LAKE": str(chosen.lake),
            "HOOKSTATION_DATA_DIR": str(folder),
            "HOOKSTATION_SPARK_MASTER": "local[2]",
            runs.FAILPOINT: str(self.point),
        }

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it; kill it at the end of the block."""
        command = [sys.executable, *self.words]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=log, stderr=log
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def run(self) -> int:
        """Run it to its end; return its exit code."""
        with self.started() as process:
            return process.wait(PATIENCE_S)

    def dies_at(self, name: str) -> None:
        """Run until it is killed at the failpoint; expire its lock."""
        self.point.write_text(name)
        code = self.run()
        assert not self.point.exists(), (name, self.log.read_text()[-3000:])
        # An executor that is killed fails the run, which ends by itself.
        assert code == (1 if name in ON_EXECUTORS else -signal.SIGKILL)
        PipelineLock.objects.update(until=datetime.now(UTC) - timedelta(seconds=1))
