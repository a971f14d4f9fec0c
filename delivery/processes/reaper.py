"""Kill the registered process groups as soon as the supervisor has died, for whatever reason.

This is a script and not imported: it starts in a few milliseconds, does not load Django, and
survives what kills the supervisor. Its standard input is a pipe that only the supervisor writes to;
the pipe ends even if the supervisor is killed by SIGKILL.

Lines: ``+<group>`` watches a process group, ``-<group>`` stops watching it.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Follow the supervisor's lines until they end, then kill the groups still watched."""
    # A signal from a terminal or a service manager to all processes must not end the reaper first.
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
