"""Kills the process groups it was told about as soon as its supervisor is gone, however it died.

A script of its own, not an import: it starts in a few milliseconds, holds nothing of Django, and
survives what takes the supervisor away. Its standard input is a pipe that only the supervisor can
write to; the end of that pipe is the one sign of death that not even SIGKILL can suppress.

Lines: ``+<group>`` watches a process group, ``-<group>`` forgets it.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Follow the supervisor's lines until they end, then kill what is still watched."""
    # A terminal or a service manager that signals everybody must not take the reaper first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line[1:])
        if line.startswith(b"+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
