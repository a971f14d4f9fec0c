"""The supervisor with real processes: it restarts children and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delivery.processes.control import WAIT_FOR_GO, Child, Process, Reaper

ROOT = Path(__file__).resolve().parents[2]

# A supervisor of one child, `sh` running the given script. A file in the working directory changes
# the heartbeat: `still` makes it return false, `lost` makes it fail, `hang` makes it never return.
PROGRAM = """
import logging, sys, time
from pathlib import Path
from delivery.processes.control import Child
from delivery.cluster.supervisor import Supervisor

def is_alive():
    with open("asked", "a") as asked:
        asked.write("?")
    if Path("lost").exists():
        raise ConnectionError("no database")
    while Path("hang").exists():
        time.sleep(0.05)
    return not Path("still").exists()

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
script, grace_s = sys.argv[1:]
command = ("/bin/sh", "-c", script)
child = Child(name="child", command=command, is_alive=is_alive, settle_s=0.2)
Supervisor([child], grace_s=float(grace_s), pulse_s=0.1).run()
"""
# Writes its own and its child's process id, then waits like a service with a worker.
SERVICE = "sleep 60 & echo $$ $! >> started; wait"
STUBBORN = "trap '' TERM; " + SERVICE

Supervise = Callable[..., subprocess.Popen[str]]


def wait_until(true: Callable[[], object], seconds: float = 120.0) -> None:
    """Poll until true; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def children_of(pid: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] not in {"Z", "X"}:
            found.add(int(stat.parent.name))
    return found


def tree(pid: int) -> set[int]:
    """The process and all its descendants."""
    return {pid}.union(*(tree(child) for child in children_of(pid)))


def starts(folder: Path) -> list[list[int]]:
    """Process ids of the service and its worker, one pair for each start."""
    path = folder / "started"
    lines = path.read_text().splitlines() if path.exists() else []
    return [[int(number) for number in line.split()] for line in lines]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Start a supervisor whose child runs the script; return when the script has started."""
    running: list[subprocess.Popen[str]] = []

    def start(script: str, grace_s: float = 5.0) -> subprocess.Popen[str]:
        popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, script, str(grace_s)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(popen)
        wait_until(lambda: starts(tmp_path), 10)
        return popen

    yield start
    for popen in running:
        popen.kill()
        with popen:  # closes its pipe
            popen.wait()
    for pid in [pid for start in starts(tmp_path) for pid in start if lives(pid)]:
        os.kill(pid, signal.SIGKILL)


def finish(supervisor: subprocess.Popen[str]) -> str:
    """Wait until the supervisor ends with status 0; return its output."""
    output, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0, output
    return output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_child_and_its_worker(
    supervise: Supervise, tmp_path: Path, number: signal.Signals
) -> None:
    supervisor = supervise(SERVICE)
    everybody = tree(supervisor.pid)
    assert everybody > {supervisor.pid, *starts(tmp_path)[0]}

    supervisor.send_signal(number)

    assert "stopped" in finish(supervisor)
    assert not [pid for pid in everybody if lives(pid)]


def test_ctrl_c_reaches_the_child_as_one_sigterm(supervise: Supervise, tmp_path: Path) -> None:
    heard = 'for s in INT TERM; do trap "echo $s >> heard; kill $!; exit" $s; done; '
    supervisor = supervise("sleep 60 & " + heard + "echo $$ $! >> started; wait")

    os.killpg(supervisor.pid, signal.SIGINT)

    finish(supervisor)
    assert (tmp_path / "heard").read_text() == "TERM\n"


def test_the_worker_of_the_child_gets_no_sigterm(supervise: Supervise, tmp_path: Path) -> None:
    worker = "sh -c 'trap \"echo TERM >> worker\" TERM; echo up > worker; sleep 60 & wait; wait'"
    supervisor = supervise(f"{worker} & echo $$ $! >> started; trap 'sleep 0.2; exit' TERM; wait")
    wait_until((tmp_path / "worker").exists)

    supervisor.terminate()

    finish(supervisor)
    assert (tmp_path / "worker").read_text() == "up\n"


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(
    supervise: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise(STUBBORN, grace_s=0.3)

    supervisor.terminate()

    assert "did not stop in time" in finish(supervisor)
    assert not any(lives(pid) for pid in starts(tmp_path)[0])


def test_a_second_signal_skips_the_rest_of_the_grace(supervise: Supervise, tmp_path: Path) -> None:
    supervisor = supervise(STUBBORN, grace_s=600)
    supervisor.terminate()
    time.sleep(0.2)
    assert supervisor.poll() is None

    supervisor.terminate()

    finish(supervisor)
    assert not any(lives(pid) for pid in starts(tmp_path)[0])


def test_a_dead_child_is_restarted_and_its_old_worker_ends(
    supervise: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise(SERVICE)
    child, worker = starts(tmp_path)[0]

    os.kill(child, signal.SIGKILL)

    wait_until(lambda: len(starts(tmp_path)) == 2)
    assert not lives(worker)
    assert all(lives(pid) for pid in starts(tmp_path)[1])
    supervisor.terminate()
    assert "child ended (SIGKILL); starting it again in 1 s" in finish(supervisor)


def test_nothing_survives_a_killed_supervisor(supervise: Supervise) -> None:
    supervisor = supervise(STUBBORN)
    everybody = tree(supervisor.pid)
    assert len(everybody) == 4  # supervisor, reaper, child, worker

    supervisor.kill()

    wait_until(lambda: not any(lives(pid) for pid in everybody), 3)


def test_a_killed_reaper_is_replaced_and_knows_all_children(
    supervise: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise(STUBBORN)
    child, worker = starts(tmp_path)[0]
    (reaper,) = children_of(supervisor.pid) - {child}

    os.kill(reaper, signal.SIGKILL)

    wait_until(lambda: len(children_of(supervisor.pid) - {reaper, child}) == 1)
    time.sleep(0.2)  # time for the new reaper to learn the children; it does not confirm
    supervisor.kill()
    wait_until(lambda: not lives(child) and not lives(worker), 3)


def test_no_child_starts_if_the_supervisor_dies_before_the_reaper_knows_it(tmp_path: Path) -> None:
    command = [*WAIT_FOR_GO, "touch", str(tmp_path / "ran")]

    subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    assert not (tmp_path / "ran").exists()

    subprocess.run(command, input=b"go\n", check=True)
    assert (tmp_path / "ran").exists()


def test_a_frozen_child_is_killed_and_restarted(supervise: Supervise, tmp_path: Path) -> None:
    supervisor = supervise(STUBBORN)

    (tmp_path / "still").touch()
    wait_until(lambda: not any(lives(pid) for pid in starts(tmp_path)[0]))
    (tmp_path / "still").unlink()

    wait_until(lambda: len(starts(tmp_path)) == 2)
    supervisor.kill()
    assert "child hangs" in supervisor.communicate(timeout=60)[0]


def test_an_unreadable_heartbeat_kills_no_child(supervise: Supervise, tmp_path: Path) -> None:
    (tmp_path / "lost").touch()
    supervisor = supervise(SERVICE)
    asked = tmp_path / "asked"

    wait_until(lambda: asked.exists() and asked.stat().st_size > 5)

    assert all(lives(pid) for pid in starts(tmp_path)[0])
    supervisor.terminate()
    assert finish(supervisor).count("the heartbeat of child cannot be read") == 1


def test_a_hanging_heartbeat_query_does_not_block_the_stop(
    supervise: Supervise, tmp_path: Path
) -> None:
    (tmp_path / "hang").touch()
    supervisor = supervise(SERVICE)
    wait_until((tmp_path / "asked").exists)

    supervisor.terminate()

    finish(supervisor)


@pytest.fixture
def reaper() -> Iterator[Reaper]:
    reaper = Reaper()
    yield reaper
    reaper.close()


@pytest.mark.parametrize(
    ("child", "expected"),
    [
        (Child(name="child", command=("false",)), [1, 2, 4, 8, 16, 30, 30]),
        (Child(name="child", command=("false",), longest_pause_s=3), [1, 2, 3, 3, 3, 3, 3]),
    ],
)
def test_restart_delays_double_up_to_the_maximum(
    reaper: Reaper, child: Child, expected: list[int]
) -> None:
    process = Process(child, reaper)
    pauses = []
    for _ in range(7):
        process.start()
        wait_until(process.has_ended)
        status = process.reap()
        pauses.append(round(process.start_at - time.monotonic()))

    assert status == 1
    assert pauses == expected


def test_a_long_running_process_restarts_without_a_long_delay(reaper: Reaper) -> None:
    process = Process(Child(name="child", command=("false",)), reaper)
    for age_s in (0, 0, 61):
        process.start()
        process.started_at -= age_s
        wait_until(process.has_ended)
        process.reap()

    assert round(process.start_at - time.monotonic()) == 1


def test_a_command_that_fails_to_start_is_retried(reaper: Reaper) -> None:
    process = Process(Child(name="child", command=("true",), folder=Path("/nowhere")), reaper)

    process.start()

    assert not process.is_running
    assert round(process.start_at - time.monotonic()) == 1
