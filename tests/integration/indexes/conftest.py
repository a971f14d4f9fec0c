"""The rows and limits that all tests of this folder share."""

import pickle
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pytest_django import DjangoDbBlocker

from channels_app.admin import base
from channels_app.database import keyset, raw
from delivery.acks import correlations
from delivery.admin import dead_letter_groups, filters
from delivery.api.views import timeline as timeline_view
from delivery.health import monitor
from delivery.maintenance import retention, sweeps, traffic
from delivery.queue import timeline
from delivery.replay import requests, runner
from tests.integration.indexes import world
from tests.integration.indexes.snapshot import Snapshot
from tests.integration.indexes.world import World


class Filled:
    """Full tables, created once in seconds and then copied back for each test."""

    def __init__(self, folder: Path) -> None:
        self._snapshot = Snapshot(folder)
        self._world = b""

    def world(self) -> World:
        """Fill the tables and update the database's statistics."""
        if not self._world:
            made = world.make()
            self._snapshot.save()
            self._world = pickle.dumps(made)
            return made
        self._snapshot.restore()
        world.analyze()
        found: World = pickle.loads(self._world)  # noqa: S301  # our own bytes
        return found

    def drop(self) -> None:
        """Remove the copy."""
        if self._world:
            self._snapshot.drop()


@pytest.fixture(scope="session")
def filled(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Filled]:
    """The full tables with which each test of this folder begins."""
    made = Filled(tmp_path_factory.mktemp("snapshot"))
    yield made
    with django_db_blocker.unblock():
        made.drop()


@pytest.fixture
def large(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> World:
    """Full tables, with limits of unindexed scans that are small compared with them."""
    # One statement at a time, so that each is judged.
    monkeypatch.setattr(raw, "fit_together", lambda statements: False)
    for module, name, value in (
        (keyset, "SCAN_ROWS", (40, 40, 40)),
        (timeline_view, "SCAN_ROWS", 40),
        (timeline_view, "MAX_OWN", 40),
        (timeline, "MAX_COUNTED", 40),
        (runner, "SCAN", 40),
        (requests, "SCAN_ROWS", 40),
        (retention, "BATCH", 40),
        (correlations, "BATCH", 40),
        (traffic, "SLICE", 40),
        # Include rows of the current instant.
        (traffic, "LAG", timedelta(minutes=-1)),
        (sweeps, "BATCH", 40),
        (monitor, "SCAN_ROWS", 40),
        (base, "WINDOW", 40),
        (base.AdminPage, "list_per_page", 5),
        (dead_letter_groups, "SCAN_ROWS", 40),
        (filters, "MAX_ROWS", 10),
        (filters, "MIN_ROWS", 5),
    ):
        monkeypatch.setattr(module, name, value)
    return filled.world()
