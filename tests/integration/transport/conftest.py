"""The sender that tests of this folder share."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.sending import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made
