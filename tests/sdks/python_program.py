"""Celery or django-q2 on SQS: start a worker, queue tasks, and print whether they are done.

The applications are those of clients/examples, which are written for Amazon SQS.
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
from typing import NamedTuple

PATIENCE_S = 120.0
EXAMPLES = Path(__file__).resolve().parents[2] / "clients/examples"
LETTERS = ("9", "10")
"""Two letters. In the Celery application each tenth one needs a second try."""


class Program(NamedTuple):
    """An example's folder and the arguments of its Python commands."""

    folder: str
    prepare: Sequence[str]
    worker: Sequence[str]
    send: Sequence[str]


PROGRAMS = {
    "celery": Program(
        "celery-sqs",
        ("-c", ""),
        ("-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-l", "info"),
        ("send_letters.py",),
    ),
    "django-q2": Program(
        "django-q2",
        ("manage.py", "migrate", "-v", "0"),
        ("manage.py", "qcluster"),
        ("manage.py", "send_letters"),
    ),
}


def say(**said: object) -> None:
    """Print a line of JSON for the caller."""
    sys.stdout.write(f"{json.dumps(said)}\n")
    sys.stdout.flush()


def main(name: str) -> None:
    """Run the program's one check."""
    outbox = Path(os.environ["FOLDER"], name)
    outbox.mkdir()
    program = PROGRAMS[name]
    place = EXAMPLES / program.folder
    environment = {
        **os.environ,
        "SHOP_DB": str(outbox / "shop.sqlite3"),
        "PYTHONPATH": str(place),
    }

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            command, cwd=place, env=environment, stdout=sys.stderr, start_new_session=True
        )

    say(version=version(name))
    prepared = start(*program.prepare).wait(PATIENCE_S)
    worker = start(*program.worker)
    try:
        sent = start(*program.send, *LETTERS, str(outbox)).wait(PATIENCE_S)
        if prepared or sent:
            say(check="tasks", ok=False, reason="not sent")
            return
        end = time.monotonic() + PATIENCE_S
        while not all((outbox / f"{letter}.txt").exists() for letter in LETTERS):
            if time.monotonic() > end or worker.poll() is not None:
                say(check="tasks", ok=False, reason="not done")
                return
            time.sleep(0.1)
        say(check="tasks", ok=True)
    finally:
        # django-q2 may wait a minute for a response (clients/examples/django-q2/README.md).
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(60)


if __name__ == "__main__":
    main(sys.argv[1])
