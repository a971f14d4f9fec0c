"""A frozen web process is replaced while its siblings go on answering."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from delivery.cluster import children, supervisor, web_watch
from delivery.cluster.children import Bind
from delivery.cluster.web_watch import FALSE_ANSWERS, MAX_CHECKS, MAX_SILENT_CHECKS, WebWatch
from tests.support.broker import Broker, descendants, lives, running, wait_until

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
"""A web server with one process and a heartbeat a hundred times a second."""


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
    """Process id of the web process that beats."""
    (path,) = folder.glob("*.*")
    return int(path.name.partition(".")[2])


def look(watch: WebWatch, times: int) -> None:
    """Check as the supervisor does, but more often."""
    for _ in range(times):
        assert watch()
        time.sleep(0.05)


@pytest.mark.usefixtures("server")
def test_a_process_with_heartbeats_is_not_killed(folder: Path) -> None:
    pid = of(folder)
    look(WebWatch(), MAX_SILENT_CHECKS + FALSE_ANSWERS)
    assert lives(pid)


@pytest.mark.usefixtures("folder")
def test_a_server_without_heartbeats_is_replaced_after_two_minutes() -> None:
    """Its replacement gets as much time."""
    watch = WebWatch()
    for _ in range(2):
        answers = [watch() for _ in range(MAX_SILENT_CHECKS + FALSE_ANSWERS)]
        assert answers == [True] * MAX_SILENT_CHECKS + [False] * FALSE_ANSWERS
    assert FALSE_ANSWERS == supervisor.MAX_FAILED_PROBES


@pytest.mark.usefixtures("server")
def test_a_frozen_process_is_killed_after_several_checks(folder: Path) -> None:
    pid, watch = of(folder), WebWatch()
    os.kill(pid, signal.SIGSTOP)
    look(watch, MAX_CHECKS)
    assert lives(pid)
    look(watch, 1)
    wait_until(lambda: not lives(pid), 5, "it is still there")
    look(watch, 1)
    assert list(folder.glob("*.*")) == []


@pytest.mark.usefixtures("server")
def test_a_short_pause_resets_the_count_of_missed_heartbeats(folder: Path) -> None:
    pid, watch = of(folder), WebWatch()
    for _ in range(3):
        os.kill(pid, signal.SIGSTOP)
        look(watch, MAX_CHECKS - 1)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
        look(watch, 1)
    assert lives(pid)


@pytest.mark.usefixtures("server")
def test_an_unwritable_heartbeat_folder_kills_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only disk all heartbeats stop, and no process is killed."""
    pid, watch = of(folder), WebWatch()
    os.kill(pid, signal.SIGSTOP)  # its file stays as it is, like all others

    def refuse(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    look(watch, 2 * MAX_CHECKS)
    assert lives(pid)
    monkeypatch.undo()


def test_the_processes_of_others_and_other_files_are_left_alone(folder: Path) -> None:
    """Process ids are reused: only processes of our web server are killed."""
    with subprocess.Popen(["/bin/sleep", "600"]) as other:
        (folder / f"{os.getpgid(other.pid)}.{other.pid}").touch()
        (folder / f"1.{other.pid}").touch()
        (folder / "1.999999999").touch()
        (folder / "README.md").touch()
        look(WebWatch(), MAX_CHECKS + 2)
        assert lives(other.pid)
        other.kill()
    assert not (folder / "1.999999999").exists()
    assert (folder / "README.md").exists()


def test_the_supervisor_uses_the_heartbeat_watch() -> None:
    assert isinstance(children.web(Bind.parse("127.0.0.1:8000")).is_alive, WebWatch)


def test_only_folders_of_departed_hosts_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_watch, "folder", lambda: tmp_path / "here")
    long_ago = time.time() - web_watch.GONE_S - 60
    for host, names, touched in (
        ("gone", ["supervisor", "1.2", "1.3"], long_ago),
        ("alive", ["supervisor", "1.2"], time.time()),
        ("suspended", ["supervisor", "1.2"], long_ago + 120),
        ("other", ["supervisor", "README.md"], long_ago),
        ("here", ["supervisor", f"1.{os.getpid()}"], long_ago),
    ):
        (tmp_path / host).mkdir()
        for name in names:
            (tmp_path / host / name).touch()
            os.utime(tmp_path / host / name, (touched, touched))
    # One fresh file is enough: the host's other processes may have ended.
    os.utime(tmp_path / "alive" / "1.2", (long_ago, long_ago))

    look(WebWatch(), 2)

    left = {path.name: {file.name for file in path.iterdir()} for path in tmp_path.iterdir()}
    assert left == {
        "alive": {"supervisor", "1.2"},
        "suspended": {"supervisor", "1.2"},
        "other": {"README.md"},
        "here": {"supervisor", f"1.{os.getpid()}"},
    }


HOLD = """
import ctypes, os, threading, time

def hold():
    named = ""
    while named != str(os.getpid()):
        time.sleep(0.2)
        try:
            named = open(os.environ["HOLD"]).read()
        except OSError:
            pass
    ctypes.PyDLL(None).sleep(3600)

os.register_at_fork(after_in_child=lambda: threading.Thread(target=hold, daemon=True).start())
"""
"""A ``sitecustomize`` for web processes. It blocks the process whose id is in the file in C code
that keeps the GIL, as a regular expression does that backtracks for years."""
STOPPED_S, STUCK_S = 60.0, 300.0
"""Normally 1 to 2 s and 30 s; longer for busy machines."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with two web processes; its file ``hold`` names the one to block."""
    folder = tmp_path_factory.mktemp("broker")
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text(HOLD)
    settings = {"PYTHONPATH": str(folder / "own"), "HOLD": str(folder / "hold")}
    with running(folder, HOOKSTATION_WEB_WORKERS="2", **settings) as broker:
        yield broker


def two_beat(broker: Broker) -> set[int]:
    """Wait until both web processes beat; return their process ids."""

    def beating() -> set[int]:
        files = (broker.folder / "web").glob("*/*.*")
        return {pid for path in files if lives(pid := int(path.name.partition(".")[2]))}

    wait_until(lambda: len(beating()) == 2, 60, "two web processes do not beat", broker.log)
    return beating()


def is_answered(broker: Broker) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{broker.port}/readyz", timeout=1).ok
    except requests.RequestException:
        return False  # the kernel gave the connection to the frozen process


def end_of(broker: Broker, pid: int, seconds: float) -> int:
    """Wait until the process is killed; return how many requests were answered meanwhile."""
    end, answered = time.monotonic() + seconds, 0
    while lives(pid):
        assert time.monotonic() < end, f"it is still there after {seconds} s\n{broker.log()}"
        answered += is_answered(broker)
        time.sleep(0.2)
    return answered


@pytest.mark.e2e
@pytest.mark.trap("a pattern that backtracks")
def test_a_frozen_web_process_is_replaced(broker: Broker) -> None:
    before = two_beat(broker)
    assert broker.process is not None
    assert before <= set(descendants(broker.process.pid))
    frozen = min(before)
    os.kill(frozen, signal.SIGSTOP)
    end_of(broker, frozen, STOPPED_S)
    # The supervisor sees the stopped process before the watch misses its heartbeat.
    assert f"process {frozen} is stopped" in broker.log()
    assert two_beat(broker) & before == before - {frozen}


@pytest.mark.e2e
@pytest.mark.trap("a pattern that backtracks")
def test_a_web_process_that_is_stuck_is_replaced_while_the_other_answers(broker: Broker) -> None:
    before = two_beat(broker)
    stuck = min(before)
    (broker.folder / "hold").write_text(str(stuck))
    assert end_of(broker, stuck, STUCK_S) > 5
    assert f"web process {stuck} hangs; killing it" in broker.log()
    assert two_beat(broker) & before == before - {stuck}
    for _ in range(20):
        assert requests.get(f"http://127.0.0.1:{broker.port}/readyz", timeout=60).ok


@pytest.mark.e2e
def test_a_live_host_recreates_its_folder(broker: Broker) -> None:
    before = two_beat(broker)
    # A web process may be writing there at this moment.
    shutil.rmtree(broker.folder / "web", ignore_errors=True)
    assert two_beat(broker) == before
