"""The supervisor with real processes: it restarts children and leaves no process behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delivery.processes import control
from delivery.processes.control import WAIT_FOR_GO, Child, Process, Reaper, runs
from tests.support.broker import lives, title

ROOT = Path(__file__).resolve().parents[2]

# A supervisor of one child, `sh` running the given script. A file in the working directory changes
# the heartbeat: `still` makes it return false, `lost` makes it fail, `hang` makes it never return.
PROGRAM = """
import logging, os, sys, time
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

def body():
    with open("forked", "a") as forked:
        forked.write(".")
    # The shell shows which descriptors the fork has kept open.
    for descriptor in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{descriptor}"):
            os.set_inheritable(int(descriptor), True)
    os.execv(command[0], command)

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
script, grace_s, kind = sys.argv[1:]
command = ("/bin/sh", "-c", script)
body = body if kind == "fork" else None
child = Child(name="child", command=command, body=body, is_alive=is_alive, settle_s=0.2)
Supervisor([child], grace_s=float(grace_s), probe_s=0.1).run()
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


def children_of(pid: int) -> set[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return set()
    return {child for child in map(int, found) if lives(child)}


def probers(supervisor: int) -> list[int]:
    return [pid for pid in children_of(supervisor) if title(pid).endswith("prober")]


def tree(pid: int) -> set[int]:
    """The process and all its descendants."""
    return {pid}.union(*(tree(child) for child in children_of(pid)))


def starts(folder: Path) -> list[list[int]]:
    """Process ids of the service and its worker, one pair for each start."""
    path = folder / "started"
    lines = path.read_text().splitlines() if path.exists() else []
    return [[int(number) for number in line.split()] for line in lines]


of_both_kinds = pytest.mark.parametrize("supervise", ["command", "fork"], indirect=True)
"""For tests of processes and what they inherit. The other tests of the supervisor use a fork."""


@pytest.fixture
def supervise(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Supervise]:
    """Start a supervisor whose child runs the script; return when the script has started."""
    kind = getattr(request, "param", "fork")
    running: list[subprocess.Popen[str]] = []

    def start(script: str, grace_s: float = 5.0) -> subprocess.Popen[str]:
        popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, script, str(grace_s), kind],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(popen)
        wait_until(lambda: starts(tmp_path), 10)
        assert (tmp_path / "forked").exists() == (kind == "fork")
        wait_until(lambda: probers(popen.pid), 10)
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


@pytest.mark.parametrize(
    ("supervise", "number"),
    [
        ("command", signal.SIGTERM),
        ("fork", signal.SIGTERM),
        ("fork", signal.SIGINT),
        ("fork", signal.SIGHUP),
    ],
    indirect=["supervise"],
)
def test_a_signal_stops_the_child_and_its_worker(
    supervise: Supervise, tmp_path: Path, number: signal.Signals
) -> None:
    supervisor = supervise(SERVICE)
    everybody = tree(supervisor.pid)
    assert everybody > {supervisor.pid, *starts(tmp_path)[0]}

    supervisor.send_signal(number)

    assert "stopped" in finish(supervisor)
    assert not [pid for pid in everybody if lives(pid)]


@of_both_kinds
def test_ctrl_c_reaches_the_child_as_one_sigterm(supervise: Supervise, tmp_path: Path) -> None:
    heard = 'for s in INT TERM; do trap "echo $s >> heard; kill $!; exit" $s; done; '
    supervisor = supervise("sleep 60 & " + heard + "echo $$ $! >> started; wait")

    os.killpg(supervisor.pid, signal.SIGINT)

    finish(supervisor)
    assert (tmp_path / "heard").read_text() == "TERM\n"


@of_both_kinds
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


@of_both_kinds
def test_a_dead_child_is_restarted_and_its_old_worker_ends(
    supervise: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise(SERVICE)
    child, worker = starts(tmp_path)[0]

    os.kill(child, signal.SIGKILL)

    wait_until(lambda: len(starts(tmp_path)) == 2)
    assert not lives(worker)
    assert all(lives(pid) for pid in starts(tmp_path)[1])
    # A fork starts again as a fork.
    assert not (tmp_path / "forked").exists() or (tmp_path / "forked").read_text() == ".."
    supervisor.terminate()
    assert "child ended (SIGKILL); starting it again in 1 s" in finish(supervisor)


@of_both_kinds
def test_nothing_survives_a_killed_supervisor(supervise: Supervise) -> None:
    supervisor = supervise(STUBBORN)
    everybody = tree(supervisor.pid)
    assert len(everybody) == 5  # supervisor, reaper, prober, child, worker

    supervisor.kill()

    wait_until(lambda: not any(lives(pid) for pid in everybody), 3)


@of_both_kinds
def test_a_killed_reaper_is_replaced_and_knows_all_children(
    supervise: Supervise, tmp_path: Path
) -> None:
    supervisor = supervise(STUBBORN)
    child, worker = starts(tmp_path)[0]
    others = children_of(supervisor.pid) - {child}
    (reaper,) = [pid for pid in others if "reaper.py" in title(pid)]

    os.kill(reaper, signal.SIGKILL)

    wait_until(lambda: children_of(supervisor.pid) - {child} - others)
    time.sleep(0.2)  # time for the new reaper to learn the children; it does not confirm
    supervisor.kill()
    wait_until(lambda: not lives(child) and not lives(worker), 3)


def test_a_fork_exits_as_a_command_does() -> None:
    program = """
import os, sys, time
from delivery.processes.control import Child, Process, Reaper
reaper = Reaper()
for body in (
    lambda: print("ran", flush=True),
    lambda: sys.exit(3),
    lambda: sys.exit("a message"),
    lambda: 1 / 0,
    lambda: os.abort(),
):
    process = Process(Child(name="child", command=("false",), body=body), reaper)
    process.start()
    while not process.has_ended():
        time.sleep(0.01)
    print(process.reap())
reaper.close()
"""
    done = subprocess.run(
        [sys.executable, "-u", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["ran", "0", "3", "1", "1", f"-{signal.SIGABRT:d}"]
    assert "a message" in done.stderr
    assert "ZeroDivisionError" in done.stderr


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


def test_a_killed_prober_is_replaced(supervise: Supervise, tmp_path: Path) -> None:
    supervisor = supervise(STUBBORN)
    (prober,) = probers(supervisor.pid)

    os.kill(prober, signal.SIGKILL)

    wait_until(lambda: not lives(prober))
    (tmp_path / "still").touch()
    wait_until(lambda: not any(lives(pid) for pid in starts(tmp_path)[0]))
    supervisor.kill()
    output = supervisor.communicate(timeout=60)[0]
    assert "prober ended (SIGKILL); starting it again in 1 s" in output
    assert "child hangs" in output


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


def test_a_restart_waits_for_the_processes_before(
    reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(Child(name="child", command=("true",), longest_pause_s=0), reaper)
    process.start()
    wait_until(process.has_ended)
    process.reap()
    assert process.may_start()
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as left:
        process._last_group = left.pid
        assert not process.may_start()
        with monkeypatch.context() as later:
            later.setattr(control, "LEFT_S", 0.0)
            assert process.may_start()
        left.kill()
        wait_until(process.may_start)  # though it is a zombie


def test_the_first_process_of_a_container_reaps_orphans(tmp_path: Path) -> None:
    contain = ["/usr/bin/unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        subprocess.run([*contain, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        # It takes root, and a kernel or container that permits namespaces.
        pytest.skip(f"cannot create a process namespace: {error}")
    zombies = "sed -n '/^State:.*zombie/p' /proc/[0-9]*/status > zombies; mv zombies seen"
    script = f"(sleep 0.1 &); sleep 1; {zombies}; sleep 60"
    command = [*contain, sys.executable, "-c", PROGRAM, script, "5", "command"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    with subprocess.Popen(command, cwd=tmp_path, env=environment) as supervisor:
        try:
            wait_until((tmp_path / "seen").exists)
        finally:
            supervisor.kill()

    assert (tmp_path / "seen").read_text() == ""


def test_a_process_name_may_be_any_bytes() -> None:
    name = b"\xff) Z 1"
    program = f"open('/proc/self/comm', 'wb').write({name!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as renamed:
        assert renamed.stdout is not None
        renamed.stdout.readline()
        assert runs(renamed.pid)
        assert control.parent(renamed.pid) == os.getpid()
        renamed.kill()


def test_a_zombie_does_not_run() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as sleeping:
        assert runs(sleeping.pid)
        sleeping.kill()
        wait_until(lambda: not runs(sleeping.pid))
        assert Path(f"/proc/{sleeping.pid}").exists()
    assert not runs(sleeping.pid)


def test_nothing_forks_beside_other_threads(reaper: Reaper) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        process = Process(Child(name="child", body=lambda: None), reaper)
        process.start()
        assert not process.is_running
        assert round(process.start_at - time.monotonic()) == 1
    finally:
        ended.set()
        thread.join()


def test_a_command_that_fails_to_start_is_retried(reaper: Reaper) -> None:
    process = Process(Child(name="child", command=("true",), folder=Path("/nowhere")), reaper)

    process.start()

    assert not process.is_running
    assert round(process.start_at - time.monotonic()) == 1
