"""The command line with plain processes as executors: it starts ten times faster than Spark."""

import sys

import pytest

from pipeline import cli
from pipeline.execution.job import Context
from pipeline.transforms import segments
from tests.pipeline.elsewhere import Elsewhere

COMMAND = ("-c", "from tests.pipeline import without_spark; without_spark.main()")
"""Python's arguments. With a script each spawned executor would import the script again."""


def main() -> None:
    """Run a job as the archive tests run it in their own process."""
    executors = Elsewhere()
    patch = pytest.MonkeyPatch()
    patch.setattr(segments, "_call_executor", executors.ask)
    patch.setattr(Context, "start_workers", lambda context: None)
    patch.setattr(Context, "workers", None)
    sys.exit(cli.main(sys.argv[1:]))
