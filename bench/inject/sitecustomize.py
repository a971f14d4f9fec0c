"""Imported by every process that has this folder on PYTHONPATH: it notes where CPU time goes.

After each so many milliseconds of the process's CPU time the kernel interrupts the thread that is
running, and that thread's stack is written down, as faulthandler writes it. A thread that waits is
never interrupted. Children that are forked do the same, each into a file named after its number.
"""

import atexit
import faulthandler
import os
import signal
from pathlib import Path
from typing import BinaryIO

FOLDER = "BENCH_PROFILE"
"""Variable that names where to write; without it nothing happens."""
INTERVAL_S = 0.004

_files: list[BinaryIO] = []


def begin() -> None:
    """From now on, in this process."""
    _files.append(Path(os.environ[FOLDER], str(os.getpid())).open("ab", buffering=0))  # noqa: SIM115
    faulthandler.register(signal.SIGPROF, file=_files[-1], all_threads=False)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)


def end() -> None:
    """At the end of a process faulthandler lets go of the signal, which would then kill it."""
    signal.setitimer(signal.ITIMER_PROF, 0)


if FOLDER in os.environ:
    atexit.register(end)
    os.register_at_fork(after_in_child=begin)
    begin()
