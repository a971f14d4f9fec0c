"""A file of loaded Java classes that all Spark processes of the tests map, instead of parsing jars.

With the file, starting Spark and running a first query takes half of the CPU time.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from pipeline.execution import session

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".clients"
"""Where `make` keeps what is built once for the tests."""
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
    return f"-XX:SharedArchiveFile={_archive()} -Xlog:disable"


def _archive() -> Path:
    java = session.find_java()
    name = hashlib.sha256(f"{java} {pyspark.__version__} {PROGRAM}".encode()).hexdigest()[:12]
    archive = FOLDER / f"spark-{name}.jsa"
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _build(archive)
    return archive


def _build(archive: Path) -> None:
    """Run Spark once, and let Java write the file when it exits."""
    temporary = archive.with_suffix(".new")
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(temporary)],
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        check=True,
        capture_output=True,
        timeout=600,
    )
    for old in FOLDER.glob("spark-*.jsa"):
        old.unlink()
    temporary.replace(archive)
