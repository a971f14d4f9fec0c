"""Objects loaded at startup are excluded from garbage collection."""

import os
import subprocess
import sys

import pytest
from django.conf import settings

LOADED = 50_000
"""Minimum number of excluded objects; the site loads more than twice as many."""
SCRIPT = (
    "import gc, {module}; assert gc.isenabled();"
    " print(gc.get_freeze_count(), len(gc.get_objects()))"
)


def counts(module: str) -> tuple[int, int]:
    """Return how many objects the collector excludes and scans in a fresh process."""
    printed = subprocess.check_output(
        [sys.executable, "-c", SCRIPT.format(module=module)],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "broker_site.settings"},
        text=True,
    )
    spared, looked_at = printed.split()
    return int(spared), int(looked_at)


@pytest.mark.slow("starts a process")
def test_a_web_process_freezes_loaded_objects_for_the_garbage_collector() -> None:
    spared, looked_at = counts("broker_site.web")
    assert spared > LOADED
    assert looked_at < LOADED / 10


@pytest.mark.slow("starts a process")
def test_objects_that_are_not_frozen_are_collected() -> None:
    spared, looked_at = counts("broker_site.wsgi")
    assert spared < LOADED / 10
    assert looked_at > LOADED
