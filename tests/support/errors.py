"""Let errors of a server mean the same on every database."""

import pytest

from channels_app.database.dialects.mysql import MySQL
from channels_app.database.raw import dialect


def of_mysql(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker take a test's errors for MySQL's."""
    for name in ("is_away", "is_full", "is_undone"):
        monkeypatch.setattr(dialect, name, getattr(MySQL(), name))
