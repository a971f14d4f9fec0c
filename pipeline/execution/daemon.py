"""Fork Spark's Python workers with their libraries loaded: Spark runs this for `pyspark.daemon`.

A worker loads libraries after the fork, and collects garbage after each task. For a task over few
rows both take longer than the task. What is loaded here is shared by all workers and frozen, so
that collections skip it.
"""

import gc
from importlib import import_module

from pyspark.daemon import manager

PRELOADED = ("pyspark.worker", "pipeline.broker.source")
"""What runs a task, and what reads tables, with Arrow and connectorx."""

if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    manager()
