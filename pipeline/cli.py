"""Run ``python -m pipeline JOB [options]``.

Exit codes: 0 done, 1 failed, 2 invalid option or setting, 3 another run of the job is active,
4 done with findings, 130 stopped by Ctrl-C, a signal or the console.
"""

import argparse
import getpass
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline import settings
from pipeline.broker import database, replica, runs
from pipeline.broker.runs import RedactingFormatter, Run
from pipeline.contract.results import ExitCode
from pipeline.execution import session
from pipeline.execution.job import Context, Job, JobError
from pipeline.jobs import JOBS

MAX_ERROR_LENGTH = 2000
MAX_END_TRIES = 5
"""Tries to record the end of a run, since the database may be unavailable just then."""
END_PAUSE_S = 2.0
REPORT_INTERVAL_S = 30.0
"""Seconds between two lines about the same stage."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunOutcome:
    """How a run ended."""

    state: str = "finished"
    error: str = ""
    code: int = ExitCode.DONE
    result: dict[str, Any] = field(default_factory=dict)


def main(arguments: Sequence[str]) -> int:
    """Run one job to its end; returns the exit code."""
    top = parser()
    options = top.parse_args(arguments)
    if options.run is None and options.job is None:
        top.print_help()
        return ExitCode.DONE
    if options.run is not None and options.job is not None:
        top.error("--run NUMBER already determines the job")
    logging.getLogger("pipeline").setLevel(logging.INFO)
    try:
        config = settings.read()
        options, run = _begin_run(top, config, options)
    except runs.AlreadyRunning as error:
        print(error, file=sys.stderr)
        return ExitCode.BUSY
    except (settings.InvalidSetting, database.InvalidAddress, LookupError) as error:
        print(error, file=sys.stderr)
        return ExitCode.INVALID
    except database.ERRORS as error:
        print(database.error_message(error), file=sys.stderr)
        return ExitCode.FAILED
    with _show_progress(run):
        outcome = run_job(JOBS[options.job], config, options, run)
    for name, value in outcome.result.items():
        print(f"{name.replace('_', ' ')}: {value}")
    if outcome.state == "cancelled":
        print("Stopped.", file=sys.stderr)
    if outcome.error:
        print(outcome.error, file=sys.stderr)
    return outcome.code


def run_job(
    job: Job, config: settings.Settings, options: argparse.Namespace, run: runs.Run
) -> RunOutcome:
    """Run the job and record its result.

    The job runs in a thread of its own. The main thread receives signals and can tell Spark to stop
    while the job waits for Spark. (In the main thread Spark would also handle Ctrl-C itself.)
    """
    outcome = RunOutcome()
    thread = threading.Thread(
        target=_run_job, args=(job, config, options, run, outcome), name="job", daemon=True
    )

    def stop(number: int, frame: FrameType | None) -> None:
        # A second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        run.stop()

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
            run.cancel_again()
        _record_end(run, outcome)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return outcome


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog=settings.job_command(),
        description="Archive, report on and replay messages with Spark (docs/pipeline.md).",
        epilog="Exit codes: 0 done, 1 failed, 2 invalid option or setting, "
        "3 another run of the job is active, 4 done with findings, 130 stopped.",
    )
    top.add_argument(
        "--run",
        type=int,
        metavar="NUMBER",
        help="Start the run that the console queued under this number.",
    )
    commands = top.add_subparsers(dest="job", metavar="JOB", title="jobs")
    for job in JOBS.values():
        job.add_options(commands.add_parser(job.name, help=job.summary, description=job.summary))
    return top


def to_arguments(options: dict[str, Any]) -> list[str]:
    """Return a run's options as arguments of a command line."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif isinstance(value, list):
            arguments += [f"{flag}={each}" for each in value]
        elif value is not None and value is not False:
            arguments.append(f"{flag}={value}")
    return arguments


def _begin_run(
    top: argparse.ArgumentParser, config: settings.Settings, parsed: argparse.Namespace
) -> tuple[argparse.Namespace, runs.Run]:
    """Begin a run; returns the effective options and the run."""
    run_id = parsed.run
    if run_id is not None:
        job, stored = runs.options_of(config.database_url, run_id)
        parsed = top.parse_args([job, *to_arguments(stored)])
    options = {
        name: value
        for name, value in vars(parsed).items()
        if name not in ("job", "run") and value is not None and value is not False
    }
    requested_by = f"{_user()} on the command line"
    run = runs.begin(
        config.database_url,
        parsed.job,
        options,
        run_id=run_id,
        requested_by=requested_by,
        private=JOBS[parsed.job].private,
    )
    return parsed, run


def _user() -> str:
    """Return the user at the command line; its number in a container without user names."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


@contextmanager
def _show_progress(run: Run) -> Iterator[None]:
    """Show a bar on a terminal; elsewhere print a line for each stage and occasional progress."""
    console = Console(stderr=True)
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(
        RedactingFormatter(f"%(asctime)s %(levelname)s {run.job}: %(message)s", run.redact)
    )
    if console.is_terminal:
        handler = RichHandler(logging.WARNING, console, show_time=False, show_path=False)
        handler.setFormatter(RedactingFormatter("%(message)s", run.redact))
    logging.getLogger().addHandler(handler)
    try:
        if console.is_terminal:
            with _bar(run, console):
                yield
        else:
            run.on_report = _ProgressLines(run).print
            yield
    finally:
        run.on_report = lambda: None
        logging.getLogger().removeHandler(handler)


@contextmanager
def _bar(run: Run, console: Console) -> Iterator[None]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(run.job, total=None)
        run.on_report = lambda: bar.update(
            task,
            description=f"{run.job}: {run.stage}",
            completed=run.done,
            total=run.total or None,
        )
        yield


class _ProgressLines:
    """Print progress lines. The run itself logs the beginning of a stage."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stage, self._at = "", 0.0

    def print(self) -> None:
        """Print a line when REPORT_INTERVAL_S has passed since the last one."""
        run, now = self._run, time.monotonic()
        if run.stage != self._stage:
            self._stage, self._at = run.stage, now
        elif run.total and now - self._at >= REPORT_INTERVAL_S:
            self._at = now
            logger.info("%s: %s of %s", run.stage, f"{run.done:,}", f"{run.total:,}")


def _run_job(
    job: Job,
    config: settings.Settings,
    options: argparse.Namespace,
    run: runs.Run,
    outcome: RunOutcome,
) -> None:
    context: Context | None = None
    try:
        context = Context(config, options, run)
        outcome.result = job.work(context)
        if job.finding and outcome.result.get(job.finding):
            outcome.code = ExitCode.FINDINGS
    except BaseException as failure:
        _record_failure(run, failure, outcome)
    finally:
        _close(context)


def _record_failure(run: runs.Run, failure: BaseException, outcome: RunOutcome) -> None:
    """Record why a run did not finish."""
    outcome.state, outcome.code = "failed", ExitCode.FAILED
    try:
        # When the run was stopped, report that rather than Spark's error about its cancelled jobs.
        run.check()
    except runs.RunCancelled:
        outcome.state, outcome.code = "cancelled", ExitCode.STOPPED
        return
    except runs.LockLost:
        outcome.error = "The database did not hear from this run for too long."
        return
    if isinstance(failure, JobError | session.JavaError | replica.ReplicaLag):
        outcome.error, outcome.code = run.redact(str(failure)), ExitCode.INVALID
        return
    logger.error("%s", "".join(traceback.format_exception(failure)))
    if isinstance(failure, database.ERRORS):
        outcome.error = database.error_message(failure)
    else:
        outcome.error = run.redact(f"{type(failure).__name__}: {failure}")[:MAX_ERROR_LENGTH]


def _close(context: Context | None) -> None:
    """Close the context. Spark may have died, so an error here does not fail the run again."""
    try:
        if context is not None:
            context.close()
    except Exception:
        logger.warning("not ended in order: %s", traceback.format_exc(limit=1))


def _record_end(run: runs.Run, outcome: RunOutcome) -> None:
    """Record the end, and retry while the database is unavailable."""
    for tries_left in reversed(range(MAX_END_TRIES)):
        try:
            run.end(outcome.state, outcome.result, outcome.error)
        except database.ERRORS as error:
            if not tries_left:
                outcome.code = outcome.code or ExitCode.FAILED
                outcome.error = outcome.error or database.error_message(error)
            time.sleep(END_PAUSE_S if tries_left else 0)
        else:
            return
