"""Reserve ports for the processes that tests start.

A port from the kernel (`bind` to 0) is free for others until the process listens, and the next
port, on which a demo listens too, is likely to be used by an outgoing connection. So ports are
below the kernel's own range, and each is locked until the test process ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LOWEST = 10_000
_KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_held: list[int] = []


def claim(count: int = 1) -> int:
    """Return the first of ``count`` consecutive ports that are free and not reserved."""
    highest = int(_KERNEL_RANGE.read_text().split()[0]) if _KERNEL_RANGE.exists() else 32_768
    while True:
        first = random.SystemRandom().randrange(LOWEST, highest - count)
        if all(_lock(port) and _is_free(port) for port in range(first, first + count)):
            return first


def _lock(port: int) -> bool:
    folder = Path(tempfile.gettempdir(), "hookstation-test-ports")
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    _held.append(lock)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
