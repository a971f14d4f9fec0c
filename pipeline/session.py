"""Session: Spark as the jobs use it, on this machine or on any master."""

import logging
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline import java, source, worker
from pipeline.settings import BASE_DIR, BULK, Settings, export, get

PACKAGE = Path(__file__).resolve().parent
SECRETS = "(?i)secret|password|token|dsn|_url"
"""Names of options whose values Spark shows nowhere."""
QUIET = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Files are read in parts of this size: a job's memory does not grow with the lake.
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(worker.BATCH_ROWS),
    "spark.redaction.regex": SECRETS,
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


@contextmanager
def start(settings: Settings, name: str, **more: str) -> Iterator[SparkSession]:
    """A session that ends with the block. ``more`` are options of Spark, dots written as ``__``."""
    local = settings.master.startswith("local[") or settings.master == "local"
    java.ensure(settings.folder)
    # Each call into Java is a line to it.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # Workers on this machine inherit these; others are told below.
    export("PYSPARK_PYTHON", settings.python)
    export("PYTHONPATH", os.pathsep.join(filter(None, [str(BASE_DIR), get("PYTHONPATH")])))
    export(BULK, settings.bulk_url)
    builder = SparkSession.builder.master(settings.master).appName(f"hookstation {name}")
    if local:
        # Nothing of a run on one machine is to be reached from another.
        export("SPARK_LOCAL_IP", "127.0.0.1")
    options = QUIET | {
        "spark.driver.memory": settings.memory,
        "spark.ui.enabled": "false",
        f"spark.executorEnv.{BULK}": settings.bulk_url,
        "spark.sql.shuffle.partitions": str(_cores(settings.master)),
    }
    for key, value in {**options, **{k.replace("__", "."): v for k, v in more.items()}}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        if not local:
            spark.sparkContext.addPyFile(str(_packed()))
        spark.dataSource.register(source.BrokerTable)
        yield spark
    finally:
        spark.stop()


def _cores(master: str) -> int:
    """As many parts as there are cores here; twice that is a start elsewhere."""
    return (os.cpu_count() or 1) * (1 if master.startswith("local") else 2)


def _packed() -> Path:
    """This package as a file for executors elsewhere: a few kilobytes."""
    path = Path(tempfile.mkdtemp(prefix="hookstation-")) / "pipeline.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(PACKAGE.rglob("*.py")):
            archive.write(file, Path("pipeline") / file.relative_to(PACKAGE))
    return path
