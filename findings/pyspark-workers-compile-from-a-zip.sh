#!/usr/bin/env bash
# One would guess: with PySpark from PyPI and a local master, Spark's Python workers import the installed
# package, whose bytecode is cached, as the driver does.
#
# What happens: Spark puts python/lib/pyspark.zip of the same package in front of PYTHONPATH for its workers, so that
# they import PySpark from the zip. Python caches no bytecode for modules in a zip: whatever a worker process imports
# of PySpark is compiled from source, in every session that starts.
#
# Why it matters: jobs over few rows spend much of their CPU time on it. A launcher as PYSPARK_PYTHON that takes the
# zip out of PYTHONPATH is part of what made such jobs a third cheaper (docs/decisions/0037-sparks-python-workers.md).
#
# Needs a JDK (17 or newer). Exits with 0 while this holds, with 1 if it changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pyspark==4.3.0
cat >"$folder/job.py" <<'JOB'
import sys

import pyspark
from pyspark.sql import SparkSession


def loaded_from(_):
    import os

    import pyspark
    import pyspark.worker

    return pyspark.__file__, os.path.exists(pyspark.worker.__cached__)


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
[(path, has_bytecode)] = spark.sparkContext.parallelize([0], 1).map(loaded_from).collect()
spark.stop()
tail = "/".join(path.split("/")[-4:])
print(f"pyspark {pyspark.__version__}, Python {sys.version.split()[0]}")
print(f"driver's package in a zip: {'.zip/' in pyspark.__file__}")
print(f"worker's package in a zip: {'.zip/' in path} (.../{tail})")
print(f"bytecode of the worker's modules is stored: {has_bytecode}")
holds = ".zip/" not in pyspark.__file__ and ".zip/" in path and not has_bytecode
print("as described" if holds else "CHANGED")
sys.exit(0 if holds else 1)
JOB
"$folder/venv/bin/python" "$folder/job.py" 2>"$folder/errors" || { tail -5 "$folder/errors"; exit 1; }
