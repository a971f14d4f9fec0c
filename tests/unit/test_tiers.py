"""Which tests run where, and what none of them may do."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EVERYWHERE = ("tests/integration/", "tests/e2e/", "tests/crash/", "tests/pipeline/")
"""Folders whose tests run on both databases, or by their marker."""
FAST = ("unit", "integration", "interfaces")
"""Folders of tests that also run beside other work, and are never repeated."""
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
SUSPECT = re.compile(r"sleep|monotonic|perf_counter|\btime\(|_ms\b")
LEAST_BOUND_S = 5
COMPUTED = {"tests/unit/delivery/test_ack_timeouts.py": "it simulates the times that it compares"}
"""Modules whose names that end in ``_ms`` are no measured durations."""


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


def test_no_fast_test_depends_on_the_speed_of_the_machine() -> None:
    """Wait for a state (`tests.support.waiting`), and give the code a clock of the test."""
    faults = []
    for path in (path for folder in FAST for path in (ROOT / "tests" / folder).rglob("*.py")):
        name, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if not SUSPECT.search(source):
            continue  # most of them: parsing takes long
        tree = ast.parse(source)
        faults += [f"{name}:{line}: sleeps" for line in sleeps(tree)]
        if name not in COMPUTED:
            faults += [f"{name}:{line}: bounds a duration" for line in bounded_durations(tree)]
    assert not faults, "\n".join(sorted(faults))


def test_the_rule_about_speed_finds_what_it_forbids() -> None:
    for fault in ("time.sleep(0.1)", "sleep(delay)", "async def f():\n  await asyncio.sleep(1)"):
        assert list(sleeps(ast.parse(fault))), fault
    for fine in ("await_(asyncio.sleep(0))", "time.sleep(0)", "patch('time.sleep', slept.append)"):
        assert not list(sleeps(ast.parse(fine))), fine
    for fault in (
        "time.monotonic() - began < 1",
        "4.5 >= perf_counter() - began",
        "0 < answer.total_ms <= 4_999",
        "took = monotonic() - began\nassert took < 2",
        "best = min(best, time.perf_counter() - began)\nassert best / 100 < 20e-6",
        "time.monotonic_ns() - began < 1_000_000_000",
    ):
        assert list(bounded_durations(ast.parse(fault))), fault
    for fine in (
        "time.monotonic() - began >= 0.2",
        "time.monotonic() < end",
        "time.monotonic() - began < 60",
        "answer.total_ms < 5_000",
        "time.process_time() - began < 1",
        "0.1 <= took",
    ):
        assert not list(bounded_durations(ast.parse(fine))), fine


def sleeps(tree: ast.AST) -> Iterator[int]:
    """Return the lines that sleep, except with 0, which only lets others run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == "sleep":
            (seconds, *_) = [*node.args, *(it.value for it in node.keywords), ast.Constant(None)]
            if _number(seconds) != 0:
                yield node.lineno


def bounded_durations(tree: ast.AST) -> Iterator[int]:
    """Return the lines that compare a measured duration with an upper bound of a few seconds."""
    measured = {
        _name(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_difference_of_clocks(node.value)
        for target in node.targets
        if _name(target)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(operator, ast.Gt | ast.GtE):
                left, right = right, left
            elif not isinstance(operator, ast.Lt | ast.LtE):
                continue
            if (bound := _number(right)) is not None:
                scale = _scale(left, measured)
                if scale and bound < LEAST_BOUND_S * scale:
                    yield node.lineno


def _scale(side: ast.AST, measured: set[str]) -> float:
    """Return the units per second of a duration; 0 for anything else."""
    names = {_name(node) for node in ast.walk(side)}
    if _name(side).endswith("_ms"):
        return 1e3
    if any(name.endswith("_ns") and name in CLOCKS for name in names):
        return 1e9
    return 1.0 if names & measured or _calls_clock(side) else 0.0


def _is_difference_of_clocks(value: ast.AST) -> bool:
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _calls_clock(node)
        for node in ast.walk(value)
    )


def _calls_clock(side: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and _name(node.func) in CLOCKS for node in ast.walk(side))


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _number(node: ast.AST) -> float | None:
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int | float) else None
