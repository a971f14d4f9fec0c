"""Web watch: replaces a web process that stands still, stuck in C code for instance.

Each web process touches a file once a second. The supervisor looks at these files and kills a
process whose file does not change; the web server then starts another in its place. A thread does
the touching: it stands still when nothing else of the process can run, either. A loop in Python
code leaves the thread its turns, and goes unnoticed. One that a signal stopped is killed sooner
(supervisor.py).
"""

import logging
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from delivery.runtime.processes import runs

logger = logging.getLogger(__name__)

BEAT_S = 1.0
LOOKS = 10
"""Looks in a row, 3 s apart (Supervisor's ``pulse_s``), at an unchanged file. Looks are counted and
not seconds: a machine that was suspended, or a clock that was set, kills nobody."""
GONE_S = 86_400.0
"""A host whose files nobody touched for so long is gone. If it was only suspended, its processes
make the folder anew."""
MARK = "supervisor"
"""The supervisor's own file: it shows that files can be written, and what the time is there."""


def folder() -> Path:
    """Of this host's files: two hosts on one volume have processes of the same number."""
    return Path(settings.DATA_DIR) / "web" / socket.gethostname()


def begin() -> None:
    """Start to touch this process's file; in a web process, when it can answer."""
    threading.Thread(target=_beat, name="heartbeat", daemon=True).start()


def _beat() -> None:
    path = folder() / f"{os.getpgrp()}.{os.getpid()}"
    rest, is_known = threading.Event(), False
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            is_known = False
        except OSError as error:
            if not is_known:
                logger.warning("no heartbeat can be written, nobody sees a hang: %s", error)
            is_known = True
        rest.wait(BEAT_S)


class WebWatch:
    """Asked by the supervisor every few seconds; kills single processes, never all of them."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int]] = {}
        """By file: when it was touched last, and how many looks ago we saw that first."""
        self._has_cleared = False

    def __call__(self) -> bool:
        """Replace what stands still; always True, for the web server as a whole goes on."""
        before, self._seen = self._seen, {}
        if not self._can_write():
            return True  # then nobody can, and no file says anything
        if not self._has_cleared:  # once: a new host comes with a start
            self._has_cleared = True
            _clear_gone_hosts()
        for path in folder().glob("*.*"):
            if (numbers := _numbers(path)) is None:
                continue
            group, pid = numbers
            if not _is_ours(group, pid):
                if not runs(pid):
                    _forget(path)
                continue
            with suppress(FileNotFoundError):
                touched = path.stat().st_mtime_ns
                last, looks = before.get(path, (touched, -1))
                self._seen[path] = (touched, looks + 1 if touched == last else 0)
            if self._seen.get(path, (0, 0))[1] >= LOOKS:
                logger.error("web process %d stands still; killing it to start another", pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _forget(path)
        return True

    def _can_write(self) -> bool:
        try:
            folder().mkdir(parents=True, exist_ok=True)
            (folder() / MARK).touch()
        except OSError:
            return False
        return True


def _clear_gone_hosts() -> None:
    """Remove the folders of hosts that are gone: each container brings a name of its own."""
    own = folder()
    # Not this process's clock: a volume may have its own.
    now = (own / MARK).stat().st_mtime
    for host in own.parent.iterdir():
        with suppress(OSError):  # its files come and go, or another supervisor removes it as well
            files = list(host.iterdir()) if host != own else []
            if files and now - max(path.stat().st_mtime for path in files) > GONE_S:
                for path in files:
                    if path.name == MARK or _numbers(path):
                        _forget(path)
                host.rmdir()  # unless there is something that is not ours


def _numbers(path: Path) -> tuple[int, int] | None:
    """Group and number of the process whose file this is; None for any other file."""
    group, _, pid = path.name.partition(".")
    return (int(group), int(pid)) if group.isdecimal() and pid.isdecimal() else None


def _forget(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _is_ours(group: int, pid: int) -> bool:
    """Whether the process belongs to a web server that this process started."""
    try:
        return os.getpgid(pid) == group and _parent(group) == os.getpid()
    except OSError:
        return False


def _parent(pid: int) -> int:
    """Process id of the parent. Raises OSError when there is no such process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The name of the command, in parentheses, may hold anything.
    return int(stat.rpartition(")")[2].split()[1])
