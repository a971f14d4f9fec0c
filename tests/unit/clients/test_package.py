"""The Python distribution: the contents of its wheel, its imports, and the Python it needs."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import hookstation_client
import pytest

from tests.support import toolchains

CLIENT = Path(__file__).resolve().parents[3] / "clients" / "python"
SOURCES = sorted((CLIENT / "src").rglob("*.py"))
GUIDE = CLIENT.parents[1] / "docs" / "clients" / "python.md"
FRAMEWORKS = ("celery", "django", "fastapi", "flask", "pydantic", "starlette")


@pytest.mark.slow("a fresh interpreter imports httpx")
def test_import_loads_no_framework() -> None:
    code = "import sys, hookstation_client, hookstation_client.receiving; print(*sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(CLIENT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert {name.partition(".")[0] for name in done.stdout.split()}.isdisjoint(FRAMEWORKS)


def test_sources_are_written_for_python_3_9() -> None:
    for path in SOURCES:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    assert SOURCES


def test_annotations_are_never_evaluated() -> None:
    """Evaluating ``X | None`` is an error on Python 3.9."""
    late = "from __future__ import annotations"

    lacking = [p.name for p in SOURCES if ":" in p.read_text() and late not in p.read_text()]

    # protoc writes modules without annotations.
    assert [name for name in lacking if name not in {"__init__.py", "hookstation_pb2.py"}] == []


def test_blocks_of_the_guide_can_be_run_up_to_their_first_call() -> None:
    """The blocks compile, and everything that they import exists."""
    blocks = toolchains.blocks("python", GUIDE)
    for block in blocks:
        compile(block, GUIDE.name, "exec")
        imports = [line for line in block.splitlines() if line.startswith(("import ", "from "))]
        exec("\n".join(imports), {})  # noqa: S102  # our own page
    assert len(blocks) > 5


def test_public_names_exist() -> None:
    assert [n for n in hookstation_client.__all__ if not hasattr(hookstation_client, n)] == []


@pytest.mark.slow("builds a wheel in a process of its own")
def test_wheel_holds_the_package_and_its_licence(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")

    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path],
        cwd=CLIENT,
        check=True,
        capture_output=True,
    )

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    packaged = {name for name in names if name.endswith(".py")}
    assert packaged == {path.relative_to(CLIENT / "src").as_posix() for path in SOURCES}
    assert "hookstation_client/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert wheel.name == f"hookstation_client-{hookstation_client.__version__}-py3-none-any.whl"
    assert "Requires-Python: >=3.9" in metadata
    assert [
        line for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra" not in line
    ] == ["Requires-Dist: httpx>=0.27"]  # fmt: skip
