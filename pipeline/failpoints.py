"""Kill the process at a named place, once, for crash tests."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from pipeline import settings

VARIABLE = "HOOKSTATION_FAILPOINT"


def reach(name: str) -> None:
    """Kill the process when the file named by the variable contains this name.

    The process deletes the file first, as in the broker, so that its successor passes.
    """
    path = settings.get(VARIABLE)
    if not path:
        return
    with suppress(FileNotFoundError):
        if Path(path).read_text() == name:
            os.rename(path, f"{path}.reached")
            os.kill(os.getpid(), signal.SIGKILL)
