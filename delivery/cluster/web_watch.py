"""Replace a web process that hangs, for instance in C code.

Each web process touches a file once a second. The prober checks these files and kills a process
whose file does not change; the web server then starts a replacement. A thread touches the file: it
stops when nothing else in the process can run either. A loop in Python code lets the thread run and
is not detected. A process that a signal stopped is killed sooner (supervisor.py).

A replacement may hang before it touches a file for the first time. If no process touches one for
two minutes, the supervisor replaces the web server itself.
"""

import logging
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from delivery.processes.control import parent, runs

logger = logging.getLogger(__name__)

BEAT_S = 1.0
MAX_CHECKS = 10
"""Checks in a row, 3 s apart (Supervisor's ``probe_s``), that find a file unchanged. Checks are
counted instead of seconds, so that a suspended host or a changed clock kills no process."""
MAX_SILENT_CHECKS = 40
"""Checks in a row that find no process of the web server touching its file: the server is replaced.
A start on a busy machine takes a part of this time."""
FALSE_ANSWERS = 3
"""Answers after which the supervisor replaces the server (supervisor.MAX_FAILED_PROBES)."""
GONE_S = 86_400.0
"""A host whose files were not touched for this long is gone. If it was only suspended, its
processes create the folder again."""
MARK = "supervisor"
"""The prober's own file, which shows that files can be written and what the time is there."""


def folder() -> Path:
    """Return the folder of this host: processes of two hosts on one volume may have equal ids."""
    return Path(settings.DATA_DIR) / "web" / socket.gethostname()


def begin() -> None:
    """Start touching this process's file; called in a web process when it can answer."""
    threading.Thread(target=_beat, name="heartbeat", daemon=True).start()


class WebWatch:
    """Called by the prober every few seconds; kills single processes, never all of them."""

    def __init__(self) -> None:
        self._supervisor = os.getpid()  # it creates this object, the prober calls it
        self._seen: dict[Path, tuple[int, int]] = {}
        """By file: when it was last touched, and how many checks ago that was first seen."""
        self._has_cleared = False
        self._silent_checks = 0

    def __call__(self) -> bool:
        """Replace hanging processes; returns whether the web server may continue."""
        before, self._seen = self._seen, {}
        if not self._can_write():
            return True  # no process can write, so the files say nothing
        if not self._has_cleared:  # once, because a new host name comes only with a start
            self._has_cleared = True
            _clear_gone_hosts()
        for path in folder().glob("*.*"):
            if (numbers := _numbers(path)) is None:
                continue
            group, pid = numbers
            if not _is_child_of(self._supervisor, group, pid):
                if not runs(pid):
                    _forget(path)
                continue
            with suppress(FileNotFoundError):
                touched = path.stat().st_mtime_ns
                last, checks = before.get(path, (touched, -1))
                self._seen[path] = (touched, checks + 1 if touched == last else 0)
            if self._seen.get(path, (0, 0))[1] >= MAX_CHECKS:
                logger.error("web process %d hangs; killing it to start another", pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _forget(path)
        return self._is_heard()

    def _is_heard(self) -> bool:
        """Whether a process of the web server has touched its file lately, or may yet do so."""
        # The gRPC server's only process leads its group.
        if any(group != pid for group, pid in filter(None, map(_numbers, self._seen))):
            self._silent_checks = 0
            return True
        self._silent_checks += 1
        if self._silent_checks == MAX_SILENT_CHECKS + FALSE_ANSWERS:
            self._silent_checks = 0  # the next server gets as much time
            return False
        return self._silent_checks <= MAX_SILENT_CHECKS

    def _can_write(self) -> bool:
        try:
            folder().mkdir(parents=True, exist_ok=True)
            (folder() / MARK).touch()
        except OSError:
            return False
        return True


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
                logger.warning("heartbeats cannot be written, so hangs are not detected: %s", error)
            is_known = True
        rest.wait(BEAT_S)


def _clear_gone_hosts() -> None:
    """Remove the folders of hosts that are gone: each container has a new host name."""
    own = folder()
    # Not this process's clock: a volume may have its own.
    now = (own / MARK).stat().st_mtime
    for host in own.parent.iterdir():
        with suppress(OSError):  # its files change, or another supervisor removes it as well
            files = list(host.iterdir()) if host != own else []
            if files and now - max(path.stat().st_mtime for path in files) > GONE_S:
                for path in files:
                    if path.name == MARK or _numbers(path):
                        _forget(path)
                host.rmdir()  # fails if it contains other files


def _numbers(path: Path) -> tuple[int, int] | None:
    """Return the process group and id of the file's process; None for any other file."""
    group, _, pid = path.name.partition(".")
    return (int(group), int(pid)) if group.isdecimal() and pid.isdecimal() else None


def _forget(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _is_child_of(supervisor: int, group: int, pid: int) -> bool:
    """Whether the process belongs to a web server that the supervisor started."""
    try:
        return os.getpgid(pid) == group and parent(group) == supervisor
    except OSError:
        return False
