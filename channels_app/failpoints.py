"""Kill or stop the process at named places, once each, for crash tests."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from channels_app.conf import conf


def reach(name: str) -> None:
    """Send this process a signal if the file of HOOKSTATION_FAILPOINT names this place.

    The signal is SIGKILL unless another one follows the name: ``before_send SIGSTOP``. The process
    first renames the file, so that only one process dies and its successor passes this place. The
    new name tells the test that it happened.
    """
    path = conf().failpoint
    if not path:
        return
    with suppress(FileNotFoundError):
        place, _, number = Path(path).read_text().partition(" ")
        if place == name:
            os.rename(path, f"{path}.reached")
            os.kill(os.getpid(), signal.Signals[number or "SIGKILL"])
