"""A file of loaded Java classes that all Spark processes of the tests map, instead of parsing jars.

With the file, starting Spark and running a first query takes half of the CPU time.
"""

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from pipeline.execution import session
from tests.support.toolchains import BUILD_S, QUICK_JVM, once

ARCHIVE = "classes.jsa"
PROGRAM = """
import sys, tempfile
from pathlib import Path
from pyspark.sql import SparkSession, Window, functions as f
archive, folder = sys.argv[1], tempfile.mkdtemp()
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable")
    .getOrCreate()
)
rows = spark.range(100).select("id", (f.col("id") % 7).alias("k"), f.lit("{}").alias("text"))
rows = rows.withColumn("place", f.row_number().over(Window.partitionBy("k").orderBy("id")))
rows = rows.mapInArrow(lambda batches: batches, rows.schema).persist()
rows.write.partitionBy("k").parquet(f"{folder}/rows")
stored = spark.read.parquet(f"{folder}/rows").withColumn("made", f.from_json("text", "a INT"))
joined = stored.join(rows.groupBy("k").agg(f.count("*").alias("n"), f.max("id")), "k", "left_anti")
joined.unionByName(stored.where("place < 3")).orderBy("id").limit(10).collect()
spark.stop()
"""


def options() -> str:
    """Return the options for Java that map the file, which is built if it is missing."""
    state = f"{session.find_java()} {pyspark.__version__} {PROGRAM}"
    archive = once("spark", [], _build, state) / ARCHIVE
    return f"-XX:SharedArchiveFile={archive} -Xlog:disable"


def _build(folder: Path) -> None:
    """Run Spark once, and let Java write the file when it exits."""
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / ARCHIVE)],
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": " ".join(QUICK_JVM),
        },
        check=True,
        capture_output=True,
        timeout=BUILD_S,
    )
