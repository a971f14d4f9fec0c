"""Run code in the broker's tables with the broker's own code, each in a process of its own.

The harness itself does not load Django, so that one harness can measure several databases.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from bench.adapters import BenchError, Progress, no_progress
from bench.databases import ROOT

STEP, END = "step ", "end "
"""Prefixes of lines that the process prints for the harness; other lines are shown if it fails."""


def run(
    function: str,
    environment: Mapping[str, str],
    progress: Progress = no_progress,
    **arguments: object,
) -> dict[str, Any]:
    """Return the result of ``bench.internal.FUNCTION``, called with progress and the arguments.

    Raises BenchError with the last printed line when it fails.
    """
    lines: list[str] = []
    found: dict[str, Any] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "bench.internal", function, json.dumps(arguments)],
        cwd=ROOT,
        env={**environment, "DJANGO_SETTINGS_MODULE": "broker_site.settings"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(STEP):
                    done, total = map(int, line.split()[1:])
                    progress(done, total)
                elif line.startswith(END):
                    found = json.loads(line.removeprefix(END))
                else:
                    lines.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise BenchError(f"{function}: {lines[-1] if lines else process.returncode}")
    return found
