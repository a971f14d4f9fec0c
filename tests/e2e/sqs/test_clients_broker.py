"""Programs that know Amazon SQS alone, with the door's address in their environment."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest

from tests.e2e.sqs.conftest import Door
from tests.support.broker import ROOT, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]
PYTHON = sys.executable
DONE_S = 120


@contextmanager
def started(log: Path, environment: dict[str, str], *command: str) -> Iterator[None]:
    """A process that is stopped at the end."""
    with log.open("ab") as written:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=written, stderr=written
        )
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def environment(door: Door, name: str, tmp_path: Path) -> dict[str, str]:
    """A process's: the door's address and keys, and a queue."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "DATABASE": str(tmp_path / "project.sqlite3"),
        "QUEUE": name,
        **door.environment,
    }


def test_boto3_needs_the_address_alone(
    door: Door, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in door.environment.items():
        monkeypatch.setenv(variable, value)
    queue = boto3.resource("sqs").create_queue(QueueName=name)
    queue.send_message(MessageBody="hello")
    (message,) = queue.receive_messages(WaitTimeSeconds=20)
    assert message.body == "hello"
    message.delete()
    assert queue.attributes["QueueArn"].endswith(f":{name}")


def test_a_celery_worker_does_its_tasks(
    environment: dict[str, str], name: str, tmp_path: Path
) -> None:
    app, log = "tests.e2e.sqs.celery_app", tmp_path / "worker.log"
    worker = (PYTHON, "-m", "celery", "-A", app, "worker", "--pool", "solo", "-l", "info")
    with started(log, environment, *worker):
        for text in ("first", "second"):
            send = f"from {app} import note; note.delay({str(tmp_path)!r}, {text!r})"
            subprocess.run([PYTHON, "-c", send], cwd=ROOT, env=environment, check=True, timeout=120)
        wait_until(
            lambda: (tmp_path / "first").exists() and (tmp_path / "second").exists(),
            DONE_S,
            "the tasks are not done",
            log.read_text,
        )


def test_a_django_q2_cluster_does_its_tasks(
    environment: dict[str, str], name: str, tmp_path: Path
) -> None:
    project, log = "tests.e2e.sqs.django_q_project", tmp_path / "cluster.log"
    with started(log, environment, PYTHON, "-m", project, "cluster"):
        queue = [PYTHON, "-m", project, "send", str(tmp_path), "done"]
        subprocess.run(queue, cwd=ROOT, env=environment, check=True, timeout=120)
        wait_until(
            lambda: (tmp_path / "done").exists(), DONE_S, "the task is not done", log.read_text
        )
