"""A web process that stands still is replaced, and its siblings go on answering meanwhile."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from delivery.runtime import children, web_watch
from delivery.runtime.children import Bind
from delivery.runtime.web_watch import LOOKS, WebWatch
from tests.support.broker import descendants, running, wait_until

SERVER = """
import os, sys, time
from pathlib import Path
if os.fork():
    time.sleep(600)
path = Path(sys.argv[1]) / f"{os.getpgrp()}.{os.getpid()}"
while True:
    path.touch()
    time.sleep(0.01)
"""
"""A web server with one process, which beats a hundred times a second."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(web_watch, "folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", SERVER, str(folder)]
    process = subprocess.Popen(command, start_new_session=True)
    wait_until(lambda: any(folder.iterdir()), 20, "no heartbeat")
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def of(folder: Path) -> int:
    """The web process that beats."""
    (path,) = folder.glob("*.*")
    return int(path.name.partition(".")[2])


def look(watch: WebWatch, times: int) -> None:
    """As the supervisor does, but quicker."""
    for _ in range(times):
        assert watch()
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether the process is there and not a corpse."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("server")
def test_a_process_that_beats_is_left_alone(folder: Path) -> None:
    pid = of(folder)
    look(WebWatch(), 2 * LOOKS)
    assert runs(pid)


@pytest.mark.usefixtures("server")
def test_a_process_that_stands_still_is_killed_not_before_many_looks(folder: Path) -> None:
    pid, watch = of(folder), WebWatch()
    os.kill(pid, signal.SIGSTOP)
    look(watch, LOOKS)
    assert runs(pid)
    look(watch, 1)
    wait_until(lambda: not runs(pid), 5, "it is still there")
    look(watch, 1)
    assert list(folder.glob("*.*")) == []


@pytest.mark.usefixtures("server")
def test_a_pause_shorter_than_that_begins_a_new_count(folder: Path) -> None:
    pid, watch = of(folder), WebWatch()
    for _ in range(3):
        os.kill(pid, signal.SIGSTOP)
        look(watch, LOOKS - 1)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
        look(watch, 1)
    assert runs(pid)


@pytest.mark.usefixtures("server")
def test_a_folder_that_nobody_can_write_kills_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that became read-only stops all files at once, and no process."""
    pid, watch = of(folder), WebWatch()
    os.kill(pid, signal.SIGSTOP)  # its file stays as it is, like those of all others

    def refuse(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    look(watch, 2 * LOOKS)
    assert runs(pid)
    monkeypatch.undo()


def test_the_processes_of_others_and_other_files_are_left_alone(folder: Path) -> None:
    """A number may have become another's; only what belongs to our web server is killed."""
    with subprocess.Popen(["/bin/sleep", "600"]) as other:
        (folder / f"{os.getpgid(other.pid)}.{other.pid}").touch()
        (folder / f"1.{other.pid}").touch()
        (folder / "1.999999999").touch()
        (folder / "README.md").touch()
        look(WebWatch(), LOOKS + 2)
        assert runs(other.pid)
        other.kill()
    assert not (folder / "1.999999999").exists()
    assert (folder / "README.md").exists()


def test_the_supervisor_asks_the_watch() -> None:
    assert isinstance(children.web(Bind.parse("127.0.0.1:8000")).is_alive, WebWatch)


@pytest.mark.e2e
@pytest.mark.django_db(transaction=True)
@pytest.mark.trap("a pattern that backtracks")
def test_a_frozen_web_process_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, HOOKSTATION_WEB_WORKERS="2") as broker:

        def web() -> set[int]:
            files = (tmp_path / "web").glob("*/*.*")
            return {int(path.name.partition(".")[2]) for path in files}

        wait_until(lambda: len(web()) == 2, 30, "two web processes do not beat", broker.log)
        before = web()
        assert broker.process is not None
        assert before <= set(descendants(broker.process.pid))
        frozen = min(before)
        os.kill(frozen, signal.SIGSTOP)
        wait_until(lambda: not runs(frozen), 90, "it is still there", broker.log)
        wait_until(lambda: len(web() - {frozen}) == 2, 60, "none takes its place", broker.log)
        # The supervisor sees the signal before the watch misses the file.
        assert f"process {frozen} is stopped" in broker.log()
        assert max(before) in web()
        for _ in range(20):
            assert requests.get(f"http://127.0.0.1:{broker.port}/readyz", timeout=10).ok
