"""Callers of a group commit, each in a thread of its own."""

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection

PATIENCE_S = 120.0


class Call:
    """One call in its own thread, with its own connection."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self.result = work()
        except BaseException as error:
            self.error = error
        finally:
            connection.close()

    def outcome(self) -> Any:
        """Return the caller's result, or the exception that it raised."""
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "somebody waits for ever"
        return self.error or self.result
