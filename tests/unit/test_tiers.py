"""What the Makefile runs on MariaDB contains every test that needs it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EVERYWHERE = ("tests/integration/", "tests/e2e/", "tests/crash/", "tests/pipeline/")
"""Folders whose tests run on both databases, or by their marker."""


def test_tests_that_need_mariadb_run_on_it() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (names,) = re.findall(r"^MARIADB_API := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    files = {f"tests/interfaces/api/test_{name}.py" for name in names.replace("\\\n", "").split()}
    needy = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.mariadb" in path.read_text(encoding="utf-8") and path != Path(__file__)
    }
    assert {name for name in needy if not name.startswith(EVERYWHERE)} <= files
    assert all((ROOT / name).exists() for name in files)
