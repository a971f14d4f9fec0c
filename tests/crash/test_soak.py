"""A short version of `make soak`, which runs for half an hour."""

import subprocess
import sys

import pytest
from django.db import connection

from tests.support.broker import ROOT

pytestmark = pytest.mark.e2e
SECONDS = 15


@pytest.mark.seed("S4-15")
def test_a_short_soak_with_kills_loses_nothing() -> None:
    kind = "mariadb" if connection.vendor == "mysql" else "sqlite"
    options = ["--minutes", f"{SECONDS / 60}", "--rate", "5", "--every", "4", "--database", kind]
    done = subprocess.run(
        [sys.executable, "-m", "bench.soak", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, all is well." in done.stdout
