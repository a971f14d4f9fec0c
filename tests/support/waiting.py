"""Wait for a state instead of a time."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Poll until ``condition`` is true; raises an error that names ``what`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not so after {seconds:g} s")
        time.sleep(0.005)
