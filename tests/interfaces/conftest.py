"""Fixtures that tests of the interfaces share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

Same = Callable[[str, str], None]


@pytest.fixture
def same(file_regression: Any) -> Same:
    """Returns a check that a text equals its golden file (``make golden`` rewrites it)."""

    def check(name: str, text: str) -> None:
        file_regression.check(text, fullpath=GOLDEN / name)

    return check
