"""Start requested runs of the pipeline, each in its own process, and record how they end.

The process is independent of the broker: it has its own session, continues when the broker stops,
and records its own progress (pipeline/broker/runs.py). A thread waits for its end, so that no
zombie process remains and a process that dies before its first record is reported at once.
"""

import importlib.util
import logging
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from django.conf import settings
from django.db import Error as DatabaseFailure
from django.db import connections

from channels_app import clock
from delivery.conf import conf
from delivery.models import PipelineRun
from delivery.runtime import task_queue
from delivery.steps import pipeline_runs
from pipeline.contract.results import ExitCode

logger = logging.getLogger(__name__)

NICENESS = 5
"""Gives delivery precedence."""
TAIL = 2000
"""Bytes of a process's output that are kept if it could not record an error itself."""
PACKAGE = "pyspark"
PROBE = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({PACKAGE!r}) is None)"
PROBE_S = 30


def wake_up() -> None:
    """Make a worker start waiting runs now instead of within a minute."""
    task_queue.add(task_queue.PIPELINE)


def turn() -> list[threading.Thread]:
    """Request due runs and start those that may begin; return the threads that wait for them."""
    pipeline_runs.ask_due(clock.now(), has_lake=bool(settings.ENVIRONMENT.lake))
    return start()


def start() -> list[threading.Thread]:
    """Start a process for each waiting run that may begin."""
    watchers = []
    tried: set[int] = set()  # A run that is given back meanwhile waits for the next time.
    while run := pipeline_runs.take(conf().host, now=clock.now(), but=tried):
        tried.add(run.pk)
        path = log_of(run)
        try:
            process = _spawn(run, path)
        except OSError as error:
            pipeline_runs.ended(run.pk, f"It cannot be started: {error}.", now=clock.now())
            continue
        watcher = threading.Thread(target=_watch, args=(process, run.pk, path), daemon=True)
        watcher.start()
        watchers.append(watcher)
    return watchers


def interpreter() -> str:
    """Return the Python that has the pipeline's packages."""
    return settings.ENVIRONMENT.pipeline_python or sys.executable


def is_installed() -> bool:
    """Whether that Python has the packages, as far as this host can tell."""
    if interpreter() == sys.executable:
        return importlib.util.find_spec(PACKAGE) is not None
    try:
        done = subprocess.run([interpreter(), "-c", PROBE], capture_output=True, timeout=PROBE_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def log_of(run: PipelineRun) -> Path:
    """Return the file with the output of the job's last process; the row has the run's own log."""
    return Path(settings.DATA_DIR) / "pipeline" / f"{run.job}.log"


def _spawn(run: PipelineRun, path: Path) -> subprocess.Popen[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    command = [interpreter(), "-m", "pipeline", "--run", str(run.pk)]
    if nice := shutil.which("nice"):
        command = [nice, "-n", str(NICENESS), *command]
    with path.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _watch(process: subprocess.Popen[bytes], run_id: int, path: Path) -> None:
    """Wait for the process, make sure that the run has ended too, and start the next."""
    code = process.wait()
    try:
        if code == ExitCode.BUSY:
            pipeline_runs.give_back(run_id)
        elif pipeline_runs.ended(run_id, _last_output(code, path), now=clock.now()):
            logger.warning("pipeline run %s ended with code %s, see %s", run_id, code, path)
        if code != ExitCode.BUSY:
            start()
    except DatabaseFailure as error:
        # The sweep notices the missing heartbeat.
        logger.warning(
            "pipeline run %s cannot be closed; it ends when its heartbeat expires: %s",
            run_id,
            error,
        )
    finally:
        connections.close_all()


def _last_output(code: int, path: Path) -> str:
    """Return what is known of a process that did not record its own end."""
    if code < 0:
        return f"{pipeline_runs.GONE} It was killed by signal {-code}."
    try:
        output = path.read_bytes()[-TAIL:].decode(errors="replace").strip()
    except OSError:
        output = ""
    return output or f"{pipeline_runs.GONE} Its exit code was {code}."
