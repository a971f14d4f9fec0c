"""Start, stop, kill and reap one supervised process with its descendants."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from delivery.processes import reaper

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
STEADY_S = 60.0
"""After running this long, a process that dies is restarted with the first, shortest pause."""

# The shell waits for a line before it becomes the command. The supervisor first tells the reaper
# about the new process group and then sends the line, so no command ever runs that the reaper does
# not know. If the supervisor dies in between, `read` fails and nothing starts.
WAIT_FOR_GO = ("/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A command to run, and how to check that it works."""

    name: str
    command: tuple[str, ...]
    folder: Path | None = None
    """Working directory; by default the supervisor's own."""
    is_alive: Callable[[], bool] | None = None
    """Returns False when the process exists but does not work. Called from a separate thread; if it
    raises, the state is unknown and nothing is done."""
    settle_s: float = 30.0
    """Seconds after a start before the result of ``is_alive`` counts."""
    longest_pause_s: float = MAX_PAUSE_S
    """Longest pause in seconds between a death and the next start."""


class Reaper:
    """The supervisor's end of the pipe to the reaper process."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process, self._pipe = self._start()

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
            os.close(self._pipe)
            self._process, self._pipe = self._start()
            for group in self._groups:
                self._write(f"+{group}\n")

    def close(self) -> None:
        """End the reaper, which kills all groups that it still watches."""
        os.close(self._pipe)
        self._process.wait()

    def _start(self) -> tuple[subprocess.Popen[bytes], int]:
        # Isolated and without site-packages: starts quickly, independent of the environment.
        return _popen([sys.executable, "-I", "-S", reaper.__file__])

    def _write(self, line: str) -> None:
        # If the reaper has just died, ensure() replaces it and repeats all groups.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())


class Process:
    """Manages a child: at most one process group at a time, and when the next may start."""

    def __init__(self, child: Child, reaper: Reaper) -> None:
        self.child = child
        self.started_at = 0.0
        self.start_at = 0.0
        self._reaper = reaper
        self._failures = 0
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, running or dead, that was not reaped."""
        return self._popen is not None

    def start(self) -> None:
        """Start the command in a session and process group of its own.

        If the host has no processes or memory left, the start is tried again later.
        """
        try:
            popen, pipe = _popen([*WAIT_FOR_GO, *self.child.command], self.child.folder)
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
    """Whether this host has a process with that id, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def below(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, children) for each in (child, *below(child))]


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP) has stopped the process. False for one in a debugger."""
    try:
        # The command's name, in parentheses, may contain any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


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
