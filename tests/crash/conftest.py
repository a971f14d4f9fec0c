"""Fixtures of the tests that kill processes: a broker, and a channel on it."""

from collections.abc import Iterator

import pytest

from tests.crash.failpoint import Failpoint
from tests.crash.place import SETTINGS, Place
from tests.support import broker as broker_module
from tests.support.broker import Broker
from tests.support.receiver import Receiver


@pytest.fixture(scope="module")
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """The broker that all tests of a file share, with the SETTINGS of the file or of place.py.

    Its killed processes are replaced.
    """
    folder = tmp_path_factory.mktemp("crash")
    with broker_module.running(folder, **getattr(request.module, "SETTINGS", SETTINGS)) as broker:
        yield broker


@pytest.fixture
def place(started: Broker, receiver: Receiver) -> Place:
    """The test's own channel on the shared broker."""
    return Place(started, Failpoint(started), receiver)
