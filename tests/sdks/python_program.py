"""Celery or django-q2 on SQS: start a worker, queue tasks, and print whether they are done.

The applications are those of tests/e2e/sqs, which are written for Amazon SQS.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

PATIENCE_S = 120.0
CELERY, DJANGO_Q = "tests.e2e.sqs.celery_app", "tests.e2e.sqs.django_q_project"


def celery(folder: Path) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The worker's command, and the commands that queue the tasks ``first`` and ``second``."""
    worker = ("-m", "celery", "-A", CELERY, "worker", "--pool", "solo", "-l", "info")
    call = f"from {CELERY} import note; note.delay({str(folder)!r}, %r)"
    return worker, [("-c", call % name) for name in ("first", "second")]


def django_q(folder: Path) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The same commands for django-q2."""
    sends = [("-m", DJANGO_Q, "send", str(folder), name) for name in ("first", "second")]
    return ("-m", DJANGO_Q, "cluster"), sends


PROGRAMS = {"celery": celery, "django-q2": django_q}


def say(**said: object) -> None:
    """Print a line of JSON for the caller."""
    sys.stdout.write(f"{json.dumps(said)}\n")
    sys.stdout.flush()


def main(name: str) -> None:
    """Run the program's one check."""
    folder = Path(os.environ["FOLDER"], name)
    folder.mkdir()
    os.environ |= {"DATABASE": str(folder / "project.sqlite3"), "PYTHONPATH": os.getcwd()}
    say(version=version(name))
    worker, sends = PROGRAMS[name](folder)
    process = subprocess.Popen([sys.executable, *worker], stdout=sys.stderr)
    try:
        for send in sends:
            subprocess.run([sys.executable, *send], check=True, stdout=sys.stderr)
        end = time.monotonic() + PATIENCE_S
        while not all((folder / task).exists() for task in ("first", "second")):
            if time.monotonic() > end or process.poll() is not None:
                say(check="tasks", ok=False, reason="not done")
                return
            time.sleep(0.1)
        say(check="tasks", ok=True)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main(sys.argv[1])
