"""The programs that run the tests: what fails once, what fails twice, and what is counted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
"""Loading all plugins takes longer than these tests."""
FLAKY = """
from pathlib import Path
def test_{name}():
    ran = Path("{name}.ran")
    if not ran.exists():
        ran.touch()
        raise AssertionError("first run")
"""
FAILING = """
def test_{name}():
    raise AssertionError("every run")
"""
PASSING = """
def test_{name}():
    pass
"""


def run(folder: Path, program: str, *arguments: str) -> tuple[int, str]:
    """Run a tool in a folder; return its exit code and its output."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / program), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={"PATH": os.environ["PATH"], **PLUGINS},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow("starts pytest up to five times")
@pytest.mark.parametrize(
    ("tests", "code", "lines"),
    [
        ([PASSING, PASSING], 0, []),
        ([FLAKY] * 3, 0, [f"FLAKY tests/test_all.py::test_{n}" for n in range(3)]),
        ([FLAKY] * 4, 1, [f"FLAKY tests/test_all.py::test_{n}" for n in range(4)]),
        ([FLAKY, FAILING], 1, ["FAILED TWICE tests/test_all.py::test_1"]),
        ([FAILING] * 11, 1, ["test-x: 11 failed, which is too many to try again"]),
    ],
    ids=["green", "three flaky", "four flaky", "one red", "many red"],
)
def test_a_tier_tries_failed_tests_again(
    tmp_path: Path, tests: list[str], code: int, lines: list[str]
) -> None:
    write(tmp_path, tests)

    result, output = run(tmp_path, "tier", "test-x", sys.executable, "-m", "pytest", "tests")

    assert result == code, output
    assert set(lines) <= set(output.splitlines())
    log = (tmp_path / ".tests/test-x.first.log").read_text()
    assert ("AssertionError: first run" in log) == (FLAKY in tests)


def test_parts_are_counted_and_one_that_fails_fails_all(tmp_path: Path) -> None:
    """A flaky test of a tier has passed."""
    write(tmp_path, [PASSING, FLAKY])
    tier = f"{sys.executable} {ROOT}/tools/tier test-x {sys.executable} -m pytest tests"
    (tmp_path / "Makefile").write_text(
        f"test-x:\n\t{tier}\n"  # make shows the command first
        "bad:\n\t@echo '== 1 failed, 2 passed, 1 error, 1 skipped in 61.00s (0:01:01) =='\n"
        "\t@echo seed $(SEED); exit 1\n"
    )

    result, output = run(tmp_path, "parts", "test-x", "bad")

    assert result == 1
    assert output.splitlines()[-1] == "4 passed, 2 failed, 1 skipped"
    assert "flaky: tests/test_all.py::test_1" in output.splitlines()
    (seed,) = {line.split()[-1] for line in output.splitlines() if "seed" in line}
    assert (tmp_path / ".tests/bad.log").read_text() in output
    assert f"seed {seed}" in (tmp_path / ".tests/bad.log").read_text()


def write(folder: Path, tests: list[str]) -> None:
    """Write a module of tests, numbered."""
    (folder / "tests").mkdir()
    text = "".join(test.format(name=number) for number, test in enumerate(tests))
    (folder / "tests/test_all.py").write_text(text)
