"""No parser crashes under a fuzzer that is guided by coverage."""

import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

RUNS = 20_000
LONGEST = 300
"""Bytes."""


@pytest.mark.trap("fuzzing")
def test_no_input_breaks_a_parser(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has wheels for x86 alone")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.e2e.hostile.guided", str(tmp_path)),
            *(f"-runs={RUNS}", f"-max_len={LONGEST}", f"-artifact_prefix={tmp_path}/"),
        ],
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"Done {RUNS} runs" in done.stderr
