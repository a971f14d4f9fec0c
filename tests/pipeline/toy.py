"""``python -m tests.pipeline.toy``: the command line with a job that its options control."""

import argparse
import logging
import sys
import time
from typing import Any

from pipeline import cli
from pipeline.execution.job import Context, Job, JobError
from pipeline.jobs import JOBS


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the toy job's options."""
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--name", action="append")
    parser.add_argument("--who", action="append")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--fail", choices=("refused", "error", "lake"))
    parser.add_argument("--wrong", type=int)
    parser.add_argument("--rows", type=int, help="have Spark count so many rows")


def work(context: Context) -> dict[str, Any]:
    """Do what the options say."""
    options = context.options
    if options.fail == "refused":
        raise JobError(" ".join(["Not today.", *(options.who or [])]))
    if options.fail == "error":
        raise ValueError(" ".join(["it broke", *map(repr, options.who or [])]))
    if options.fail == "lake":
        return {"lake": str(context.lake)}
    for name in options.who or []:
        logging.getLogger("pipeline.toy").warning("looking for %r", name)
    for step in range(options.steps):
        context.report("stepping", step, options.steps, rows=10 * step)
        time.sleep(options.pause_s)
    result: dict[str, Any] = {"steps_made": options.steps, "names": options.name or []}
    if options.wrong:
        result["wrong"] = options.wrong
    if options.rows:
        numbers = context.spark.range(options.rows)
        context.report("counting")
        result["counted"] = numbers.selectExpr("max(id) + 1 AS it").collect()[0]["it"]
    return result


JOB = Job("toy", "Do what it is told.", arguments, work, finding="wrong", private=("who",))

if __name__ == "__main__":
    JOBS[JOB.name] = JOB
    sys.exit(cli.main(sys.argv[1:]))
