"""The benchmark from start to end, with tiny numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.databases import ROOT


@pytest.mark.e2e
def test_the_real_broker_is_measured_beside_another(tmp_path: Path) -> None:
    only = [f"--only={key}" for key in ("one", "batch", "latency50", "recovery")]
    places = ["--output", str(tmp_path / "page.md"), "--keep", str(tmp_path / "kept")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench", "--mode", "tiny", "--database", "sqlite"),
            *("--beside", "tests.e2e.direct:Direct", *places, *only),
        ],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1200,
    )

    # The other broker has no batch endpoint, and its scenario says so.
    assert done.returncode == 1, done.stdout + done.stderr
    ours, other = (
        json.loads(next((tmp_path / "kept").glob(f"*-{whose}-*")).read_text())
        for whose in ("ours", "beside")
    )
    assert ours["failures"] == {}
    assert other["failures"]["batch"] == "It has no batch endpoint."
    values = ours["values"]
    named = ("one.rate", "one.cpu", "one.cpu_web", "one.cpu_worker")
    more = ("batch.rate", "batch.ratio", "latency50.p50", "latency50.p99", "recovery.seconds")
    assert [key for key in (*named, *more) if not values[key] > 0] == []
    assert values["recovery.lost"] == 0
    page = (tmp_path / "page.md").read_text()
    assert "| other broker | ratio |" in page
    assert "CPU per delivered message" in page
    assert [path.name for path in tmp_path.glob("hookstation-bench-*")] == []
