"""Run code inside the broker's tables with the broker's own code, each in a process of its own.

The harness itself does not load Django, so that one harness can measure several databases.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.adapters import BenchError
from bench.flow import Tell, quietly

ROOT = Path(__file__).resolve().parents[2]
STEP, END = "step ", "end "
"""Prefixes of lines that the process prints for the harness; other lines are shown if it fails."""


def run(
    module: str, environment: Mapping[str, str], *arguments: object, tell: Tell = quietly
) -> dict[str, Any]:
    """Return the result of `main` of ``bench.inside.MODULE``, called with the arguments as text.

    Raises BenchError with the last printed line when it fails.
    """
    lines: list[str] = []
    found: dict[str, Any] = {}
    command = [sys.executable, "-m", "bench.inside", module, *map(str, arguments)]
    with subprocess.Popen(
        command,
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
                    done, of = line.split()[1:]
                    tell(int(done), int(of))
                elif line.startswith(END):
                    found = json.loads(line.removeprefix(END))
                else:
                    lines.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise BenchError(f"{module}: {lines[-1] if lines else process.returncode}")
    return found
