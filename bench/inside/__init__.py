"""Inside: what works in the broker's tables by the broker's own code, each a process of its own.

The harness itself stays free of Django, so that one of it can measure several databases.
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
"""How the lines begin that the process prints for us; others are shown when it fails."""


def run(
    module: str, environment: Mapping[str, str], *arguments: object, tell: Tell = quietly
) -> dict[str, Any]:
    """What `main` of ``bench.inside.MODULE`` returns, called with the arguments as text.

    Raises BenchError with the last line it said when it fails.
    """
    said: list[str] = []
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
                    said.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise BenchError(f"{module}: {said[-1] if said else process.returncode}")
    return found
