"""The rows and the bounds that all tests of this folder share."""

from datetime import timedelta

import pytest

from channels_app.admin import base
from channels_app.models import raw
from delivery.admin import causes, newest
from delivery.api import pages
from delivery.api.views import timeline as timeline_view
from delivery.runtime import sweeps
from delivery.steps import correlate, retention, timeline, traffic, watch
from delivery.steps.replay import scope, windows
from tests.integration.indexes import world
from tests.integration.indexes.world import World


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> World:
    """Full tables. What a look without an index may read at most is made small beside them."""
    # One by one, so that each is judged.
    monkeypatch.setattr(raw, "fit_together", lambda statements: False)
    for module, name, value in (
        (pages, "LOOKS", (40, 40, 40)),
        (timeline_view, "LOOK", 40),
        (timeline_view, "MOST_OWN", 40),
        (timeline, "MOST_COUNTED", 40),
        (windows, "SCAN", 40),
        (scope, "LOOK", 40),
        (retention, "BATCH", 40),
        (correlate, "BATCH", 40),
        (traffic, "SLICE", 40),
        # Rows of this very moment are looked at too.
        (traffic, "LAG", timedelta(minutes=-1)),
        (sweeps, "BATCH", 40),
        (watch, "LOOK", 40),
        (base, "WINDOW", 40),
        (base.Page, "list_per_page", 5),
        (causes, "LOOK", 40),
        (newest, "MOST", 10),
        (newest, "FEWEST", 5),
    ):
        monkeypatch.setattr(module, name, value)
    return world.make()
