"""Sample where CPU time goes, in every process that imports this module as `sitecustomize`.

After a fixed number of milliseconds of the process's CPU time the kernel interrupts the running
thread, and faulthandler writes that thread's stack. A waiting thread is never interrupted. Forked
children do the same, each into a file named by its process id. The module stands alone, because
``environment`` copies it to where Python looks for `sitecustomize`.
"""

import atexit
import faulthandler
import os
import shutil
import signal
from pathlib import Path
from typing import BinaryIO

FOLDER = "BENCH_PROFILE"
"""Variable with the folder for the samples; without it nothing happens."""
INTERVAL_S = 0.004

_files: list[BinaryIO] = []


def environment(folder: Path) -> dict[str, str]:
    """Return variables with which Python processes write samples into the folder."""
    (folder / "python").mkdir()
    shutil.copy(__file__, folder / "python/sitecustomize.py")
    return {FOLDER: str(folder), "PYTHONPATH": str(folder / "python")}


def begin() -> None:
    _files.append(Path(os.environ[FOLDER], str(os.getpid())).open("ab", buffering=0))  # noqa: SIM115 - open as long as the process runs
    faulthandler.register(signal.SIGPROF, file=_files[-1], all_threads=False)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)


def end() -> None:
    """Stop the timer, because at exit faulthandler gives the signal up, which then kills."""
    signal.setitimer(signal.ITIMER_PROF, 0)


if FOLDER in os.environ:
    atexit.register(end)
    os.register_at_fork(after_in_child=begin)
    begin()
