"""What pipeline and broker share stands alone, and names the same checks on both sides."""

import subprocess
import sys
from pathlib import Path

import pytest

from delivery.core.reconciliation import LAKE_EXPLANATIONS, Check
from pipeline.contract.results import CHECKS, DOUBLED, UNASKED

ROOT = Path(__file__).resolve().parents[3]
MODULES = sorted(path.stem for path in (ROOT / "pipeline/contract").glob("[a-z]*.py"))
IMPORTED = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
importlib.import_module(f"pipeline.contract.{sys.argv[2]}")
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "pipeline"))
"""


@pytest.mark.parametrize("name", MODULES)
def test_contract_is_imported_without_packages_and_without_the_rest_of_the_pipeline(
    name: str,
) -> None:
    # -S leaves out site-packages: only the standard library can be imported.
    command = [sys.executable, "-I", "-S", "-c", IMPORTED, str(ROOT), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert f"pipeline.contract.{name}" in imported
    assert {module for module in imported if not module.startswith("pipeline.contract.")} == {
        "pipeline",
        "pipeline.contract",
    }


def test_checks_of_an_audit_are_those_of_the_broker_and_two_of_the_lake() -> None:
    assert {*CHECKS} - {*Check} == {DOUBLED, UNASKED}


def test_every_check_of_an_audit_has_an_explanation() -> None:
    assert {*LAKE_EXPLANATIONS} == {*CHECKS}
