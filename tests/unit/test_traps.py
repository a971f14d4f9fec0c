"""The traps in docs/traps.md and the tests marked with them agree."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from django.conf import settings

TESTS = Path(settings.BASE_DIR) / "tests"
PAGE = Path(settings.BASE_DIR) / "docs" / "traps.md"
ROW = re.compile(r"^\| (?!Trap |Attack |---)(.+?) \|.*\| ([^|]+) \|$", re.MULTILINE)
MARKER = "pytest.mark.trap"


def documented() -> dict[str, set[str]]:
    """Return the tests of each trap, from the page."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == len({name for name, _ in rows}), "a trap stands there twice"
    return {name: set(re.findall(r"`([^`]+)`", tests)) for name, tests in rows}


def marked() -> dict[str, set[str]]:
    """Return the tests of each trap, from their markers."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for one in node.decorator_list:
                if isinstance(one, ast.Call) and ast.unparse(one.func) == MARKER:
                    name = ast.literal_eval(one.args[0])
                    found[name].add(f"{path.relative_to(TESTS)}::{node.name}")
    return dict(found)


@pytest.mark.slow("reads every test of the suite")
def test_traps_and_their_tests_agree() -> None:
    assert len(documented()) > 40
    assert documented() == marked()


def test_every_trap_describes_elsewhere_and_here() -> None:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if ROW.match(line):
            _, name, elsewhere, here, *_ = (cell.strip() for cell in line.split("|"))
            assert elsewhere.endswith("."), name
            assert here.endswith("."), name
