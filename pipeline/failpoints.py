"""Failpoints: places where a crash test kills the process, exactly there and once."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from pipeline import settings

VARIABLE = "HOOKSTATION_FAILPOINT"


def reach(name: str) -> None:
    """Die without a last word when the file that the variable means names this place.

    Whoever dies takes the file away first, as in the broker: its successor goes past.
    """
    path = settings.get(VARIABLE)
    if not path:
        return
    with suppress(FileNotFoundError):
        if Path(path).read_text() == name:
            os.rename(path, f"{path}.reached")
            os.kill(os.getpid(), signal.SIGKILL)
