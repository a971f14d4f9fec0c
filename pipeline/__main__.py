"""The command line: `python -m pipeline JOB [options]`.

Exit codes: 0 done, 1 failed, 2 a wrong option, 3 another run of the job is at work, 130 stopped.
"""

import argparse
import getpass
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

from pipeline import runs, settings, terminal
from pipeline.database import BadAddress
from pipeline.job import Context, Job, Refused
from pipeline.jobs import JOBS

DONE, FAILED, WRONG, BUSY, STOPPED = 0, 1, 2, 3, 130

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run one job to its end."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    logging.getLogger("pipeline").setLevel(logging.INFO)
    wanted = parser().parse_args(arguments)
    try:
        chosen = settings.read()
        run_id = wanted.run
        if run_id is not None:
            job_name, stored = runs.options_of(chosen.database_url, run_id)
            wanted = parser().parse_args([job_name, *as_words(stored)])
        options = {
            name: value
            for name, value in vars(wanted).items()
            if name not in ("job", "run") and value not in (None, False)
        }
        run = runs.begin(
            chosen.database_url,
            wanted.job,
            options,
            run_id=run_id,
            requested_by=f"{getpass.getuser()} on the command line",
        )
    except runs.Busy as error:
        print(error, file=sys.stderr)
        return BUSY
    except (settings.BadSetting, BadAddress, LookupError) as error:
        print(error, file=sys.stderr)
        return WRONG
    return work(JOBS[wanted.job], chosen, wanted, run)


def work(job: Job, chosen: settings.Settings, wanted: argparse.Namespace, run: runs.Run) -> int:
    """Do it, with progress on the terminal; returns the exit code."""

    def leave(number: int, frame: FrameType | None) -> None:
        run.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    result: dict[str, Any] = {}
    with terminal.progress(run):
        context = Context(chosen, wanted, run)
        state, error, code = "finished", "", DONE
        try:
            result = job.work(context)
        except Exception as failure:
            state, error, code = _ended(run, failure)
        finally:
            context.close()
    run.end(state, result, error)
    for name, value in result.items():
        print(f"{name.replace('_', ' ')}: {value}")
    if error:
        print(error, file=sys.stderr)
    return code


def _ended(run: runs.Run, failure: Exception) -> tuple[str, str, int]:
    """State, error and exit code of a run that did not come to its end."""
    try:
        # What Spark raises when its jobs were cancelled says nothing.
        run.check()
    except runs.Cancelled:
        return "cancelled", "", STOPPED
    except runs.Lost:
        return "failed", "The database did not hear from this run for too long.", FAILED
    if isinstance(failure, Refused):
        return "failed", str(failure), WRONG
    logger.error("%s", traceback.format_exc())
    return "failed", f"{type(failure).__name__}: {failure}"[:2000], FAILED


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    top = argparse.ArgumentParser(prog="python -m pipeline", description=__doc__)
    top.add_argument("--run", type=int, metavar="NUMBER", help="work off a run that was asked for")
    commands = top.add_subparsers(dest="job", metavar="JOB", required="--run" not in sys.argv)
    for job in JOBS.values():
        job.arguments(commands.add_parser(job.name, help=job.summary, description=job.summary))
    return top


def as_words(options: dict[str, Any]) -> list[str]:
    """A run's options as they stand on a command line."""
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [f"{flag}={each}" for each in value]
        elif value not in (None, False):
            words.append(f"{flag}={value}")
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
