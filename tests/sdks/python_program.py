"""Celery or django-q2 on SQS: start a worker, queue tasks, and print whether they are done."""

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
FOLDER = Path(__file__).parent
LETTERS = ("9", "10")
"""Two letters. In the Celery application the tenth one needs a second attempt."""


class Program(NamedTuple):
    """The arguments of a client's Python commands."""

    prepare: Sequence[str]
    worker: Sequence[str]
    send: str


PROGRAMS = {
    "celery": Program(
        ("-c", ""),
        ("-m", "celery", "-A", "celery_letters", "worker", "--pool", "solo", "-l", "info"),
        "from celery_letters import write; [write.delay(it, folder) for it in letters]",
    ),
    "django-q2": Program(
        ("-m", "django", "migrate", "-v", "0"),
        ("-m", "django", "qcluster"),
        "import django; django.setup(); from django_q.tasks import async_task;"
        "[async_task('q2_letters.write', it, folder) for it in letters]",
    ),
}
SEND = "import sys; folder, *letters = sys.argv[1:]; "


def say(**said: object) -> None:
    """Print a line of JSON for the caller."""
    sys.stdout.write(f"{json.dumps(said)}\n")
    sys.stdout.flush()


def main(name: str) -> None:
    """Run the program's one check."""
    outbox = Path(os.environ["FOLDER"], name)
    outbox.mkdir()
    program = PROGRAMS[name]
    environment = {
        **os.environ,
        "DATABASE_FILE": str(outbox / "q2.sqlite3"),
        "DJANGO_SETTINGS_MODULE": "q2_letters",
        "PYTHONPATH": str(FOLDER),
    }

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            command, cwd=outbox, env=environment, stdout=sys.stderr, start_new_session=True
        )

    say(version=version(name))
    prepared = start(*program.prepare).wait(PATIENCE_S)
    worker = start(*program.worker)
    try:
        sent = start("-c", SEND + program.send, str(outbox), *LETTERS).wait(PATIENCE_S)
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
        # django-q2 may wait a minute for a response (docs/sqs.md).
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(60)


if __name__ == "__main__":
    main(sys.argv[1])
