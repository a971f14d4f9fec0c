"""Start, stop, kill and reap one supervised process with its descendants."""

import atexit
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from delivery.processes import reaper

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
STEADY_S = 60.0
"""After running this long, a process that dies is restarted with the first, shortest pause."""
LEFT_S = 10.0
"""How long a start waits for the previous process group, which was killed. A process that waits for
a disk ends later than the signal, and its successor would find its place taken."""

# The shell waits for a line before it becomes the command. The supervisor first tells the reaper
# about the new process group and then sends the line, so no command ever runs that the reaper does
# not know. If the supervisor dies in between, `read` fails and nothing starts.
WAIT_FOR_GO = ("/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "sh")

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Signals that a supervisor handles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """What to run, and how to check that it works."""

    name: str
    command: tuple[str, ...] = ()
    body: Callable[[], object] | None = None
    """Does what the command does, without loading the code again (`Process.start`). At least one of
    the two is needed."""
    folder: Path | None = None
    """Working directory of the command; by default the supervisor's own."""
    is_alive: Callable[[], bool] | None = None
    """Returns False when the process exists but does not work. Called in another process; if it
    raises, the state is unknown and nothing is done."""
    settle_s: float = 30.0
    """Seconds after a start before the result of ``is_alive`` counts."""
    longest_pause_s: float = MAX_PAUSE_S
    """Longest pause in seconds between a death and the next start."""


class Reaper:
    """The supervisor's end of the pipe to the reaper process."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process, self.pipe = self._start()

    def watch(self, group: int) -> None:
        """Have the group killed if this process dies."""
        self._groups.add(group)
        self._write(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Stop watching a group that has ended; its number may be reused soon."""
        self._groups.discard(group)
        self._write(f"-{group}\n")

    def ensure(self) -> None:
        """Start another reaper if this one was killed."""
        if self._process.poll() is not None:
            logger.warning("the reaper process was gone; starting another")
            try:
                started = self._start()
            except OSError as error:  # the host has no processes or memory left
                logger.error("the reaper cannot be started: %s", error)
                return
            os.close(self.pipe)
            self._process, self.pipe = started
            for group in self._groups:
                self._write(f"+{group}\n")

    @property
    def pid(self) -> int:
        """The id of the reaper process."""
        return self._process.pid

    def close(self) -> None:
        """End the reaper, which kills all groups that it still watches."""
        os.close(self.pipe)
        self._process.wait()

    def _start(self) -> tuple[subprocess.Popen[bytes], int]:
        # Isolated and without site-packages: starts quickly, independent of the environment.
        return _popen([sys.executable, "-I", "-S", reaper.__file__])

    def _write(self, line: str) -> None:
        # If the reaper has just died, ensure() replaces it and repeats all groups.
        with contextlib.suppress(BrokenPipeError):
            os.write(self.pipe, line.encode())


class Process:
    """Manages a child: at most one process group at a time, and when the next may start.

    Forks of this process close the descriptors in ``private``.
    """

    def __init__(self, child: Child, reaper: Reaper, private: Sequence[int] = ()) -> None:
        self.child = child
        self.started_at = 0.0
        self.start_at = 0.0
        self._reaper = reaper
        self._private = private
        self._failures = 0
        self._last_group = 0
        self._popen: subprocess.Popen[bytes] | _Fork | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, running or dead, that was not reaped."""
        return self._popen is not None

    @property
    def pid(self) -> int | None:
        """The id of the main process, if there is one."""
        return None if self._popen is None else self._popen.pid

    def may_start(self) -> bool:
        """Whether the pause is over, and the previous process group has ended."""
        late_s = time.monotonic() - self.start_at
        return late_s >= LEFT_S or (late_s >= 0 and not self._last_group_runs())

    def _last_group_runs(self) -> bool:
        return bool(self._last_group) and _group_runs(self._last_group)

    def start(self) -> None:
        """Start the child in a session and process group of its own.

        A child with a ``body`` starts as a fork of this process, which has loaded the code: a fork
        takes milliseconds and shares the memory of what is loaded. This process must have no open
        connections. The command is run if there is no ``body``, or if this process has other
        threads, whose locks a fork would inherit.

        The start is tried again later if it fails: the host has no processes or memory left, or
        this process has other threads and the child has no command.
        """
        body, command = self.child.body, self.child.command
        if body is not None and threading.active_count() == 1:
            # The reaper waits for the end of its pipe, which must come with this process's end.
            descriptors = (self._reaper.pipe, *self._private)
            self._start(lambda: _fork(body, descriptors))
        elif command:
            self._start(lambda: _popen([*WAIT_FOR_GO, *command], self.child.folder))
        else:
            self._pause()
            logger.error("%s cannot be started beside other threads", self.child.name)

    def _start(self, make: Callable[[], tuple["subprocess.Popen[bytes] | _Fork", int]]) -> None:
        try:
            popen, pipe = make()
        except OSError as error:
            self._pause()
            logger.error("%s cannot be started: %s", self.child.name, error)
            return
        self._reaper.watch(popen.pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe, b"go\n")
        os.close(pipe)
        self._popen = popen
        self.started_at = time.monotonic()
        logger.info("%s started (pid %d)", self.child.name, popen.pid)

    def has_ended(self) -> bool:
        """Whether the main process is dead; it stays unreaped, so that its id is not reused."""
        if self._popen is None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._popen.pid, flags) is not None

    def stopped(self) -> set[int]:
        """Return the ids of its processes that a signal has stopped."""
        if self._popen is None:
            return set()
        return {pid for pid in (self._popen.pid, *below(self._popen.pid)) if is_stopped(pid)}

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the main process only: it stops its own workers."""
        if self._popen is not None:
            # Not Popen.send_signal, which would reap a process that has just died.
            os.kill(self._popen.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the main process and all that it started."""
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Kill what the dead main process left behind and reap it.

        Returns the exit status (negative: the signal) and sets ``start_at``, with a pause that
        doubles while the process keeps dying early.
        """
        popen, self._popen = self._popen, None
        if popen is None:
            raise ValueError(f"{self.child.name} does not run")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
        self._reaper.forget(popen.pid)
        self._last_group = popen.pid
        status = popen.wait()
        if time.monotonic() - self.started_at >= STEADY_S:
            self._failures = 0
        self._pause()
        return status

    def _pause(self) -> None:
        pause_s = min(FIRST_PAUSE_S * 2**self._failures, self.child.longest_pause_s)
        self.start_at = time.monotonic() + pause_s
        self._failures += 1


def runs(pid: int) -> bool:
    """Whether this host has a process with that id, of any user, that has not ended.

    A zombie has ended. It stays until its parent reads its status, which the first process of a
    container may never do for processes that it has inherited.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not _stat(pid).has_ended


def below(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    return [each for child in _children(pid) for each in (child, *below(child))]


def reap_orphans(own_pids: Collection[int | None]) -> None:
    """As the first process of a container, read the status of the orphans that have ended.

    It inherits what a killed process leaves behind. ``own_pids`` are its own children.
    """
    if os.getpid() == 1:
        for pid in _children(1):
            if pid not in own_pids and _stat(pid).has_ended:
                os.waitpid(pid, os.WNOHANG)


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP) has stopped the process. False for one in a debugger."""
    return _stat(pid).state == "T"


def parent(pid: int) -> int:
    """Return the id of a process's parent; 0 if the process is gone."""
    return _stat(pid).parent


class _Stat(NamedTuple):
    """Fields of proc_pid_stat(5)."""

    state: str
    parent: int
    group: int
    threads: int

    @property
    def has_ended(self) -> bool:
        """Whether the process runs no more code; a zombie may have threads that wait for a disk."""
        return self.state == "X" or (self.state == "Z" and self.threads <= 1)


def _stat(pid: int) -> _Stat:
    """Return what the kernel says of a process: state `X` if it is gone, `?` if unreadable."""
    try:
        # The command's name, in parentheses, may contain any byte.
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return _Stat("X", 0, 0, 0)
    except OSError:
        return _Stat("?", 0, 0, 0)
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[1]), int(fields[2]), int(fields[17]))


def _children(pid: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except OSError:
        return []


def _group_runs(group: int) -> bool:
    """Whether a process of the process group has not ended."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    stats = [_stat(int(name)) for name in os.listdir("/proc") if name.isdecimal()]
    return any(stat.group == group and not stat.has_ended for stat in stats)


def _popen(
    command: Sequence[str], folder: Path | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process in its own session; return it and the write end of its input pipe."""
    read_end, write_end = os.pipe()
    try:
        popen = subprocess.Popen(command, stdin=read_end, cwd=folder, start_new_session=True)
    except OSError:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return popen, write_end


@dataclass(frozen=True, slots=True)
class _Fork:
    """A forked process; has the methods of Popen that `Process` needs."""

    pid: int

    def wait(self) -> int:
        """Reap the process; returns the exit status (negative: the signal)."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _fork(body: Callable[[], object], private: Sequence[int]) -> tuple[_Fork, int]:
    """Fork a process in its own session; return it and the write end of its input pipe."""
    read_end, write_end = os.pipe()
    # Until the fork has handlers of its own, a signal would be noted in its copy of this process.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        if not (pid := os.fork()):
            _run(body, read_end, (write_end, *private), blocked)
    except OSError:
        os.close(write_end)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(read_end)
    return _Fork(pid), write_end


def _run(
    body: Callable[[], object], go: int, private: Sequence[int], mask: Iterable[int]
) -> NoReturn:
    """In a fork: run the body when the supervisor says so, and exit as a command does."""
    status = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in private:
            os.close(descriptor)
        is_told = os.read(go, 3)  # nothing if the supervisor has died
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.close(go)
        if is_told:
            body()
            status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        logger.exception("the process ends")
    finally:
        atexit._run_exitfuncs()
        os._exit(status)
