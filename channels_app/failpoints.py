"""Failpoints: places where a crash test kills or stops the process, exactly there and once."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from channels_app.conf import conf


def reach(name: str) -> None:
    """Die without a last word when the file that HOOKSTATION_FAILPOINT means names this place.

    Behind the name another signal may stand: ``before_send SIGSTOP``. Whoever dies takes the file
    away first: of several processes one dies, and its successor goes past. What the file is renamed
    to tells the test that it happened.
    """
    path = conf().failpoint
    if not path:
        return
    with suppress(FileNotFoundError):
        place, _, number = Path(path).read_text().partition(" ")
        if place == name:
            os.rename(path, f"{path}.reached")
            os.kill(os.getpid(), signal.Signals[number or "SIGKILL"])
