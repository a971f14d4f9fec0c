"""The command line with executors that are plain processes: started in a tenth of Spark's time."""

import sys

import pytest

from pipeline import commandline
from pipeline.execution.job import Context
from pipeline.transforms import segments
from tests.pipeline.elsewhere import Elsewhere

COMMAND = ("-c", "from tests.pipeline import without_spark; without_spark.main()")
"""Of Python. Not as a program: each executor would begin with all that it imports."""


def main() -> None:
    """Run a job of the archive, as its tests do in their own process."""
    executors = Elsewhere()
    patch = pytest.MonkeyPatch()
    patch.setattr(segments, "_ask", executors.ask)
    patch.setattr(Context, "begin_workers", lambda context: None)
    patch.setattr(Context, "workers", None)
    sys.exit(commandline.main(sys.argv[1:]))
