"""Jobs on a standalone Spark cluster with two workers give the results of plain Python."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings

from delivery.models import PipelineRun
from pipeline.execution import session
from pipeline.settings import Settings
from tests.pipeline import month
from tests.pipeline.month import Month
from tests.pipeline.standalone import INHERITED, Cluster, cluster, driver
from tests.pipeline.test_usage import counted, plain, stored, stored_times, timed

pytestmark = pytest.mark.django_db(transaction=True)

MAX_S = 600


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def count(made: Month, where: Cluster, address: str) -> PipelineRun:
    """Run the job `usage` for the month on the cluster, in its own process; return the run."""
    known = {**os.environ, **where.environment, "DATABASE_URL": address}
    for name in ("HOOKSTATION_LAKE", "HOOKSTATION_LAKE_READ_URL"):
        known.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "usage", f"--since={made.since.isoformat()}"],
        cwd=settings.BASE_DIR,
        env=known
        | {
            "HOOKSTATION_SPARK_MASTER": where.master,
            "HOOKSTATION_DATA_DIR": str(where.folder),
            "HOOKSTATION_LAKE_LAG_S": "1",
        },
        capture_output=True,
        text=True,
        timeout=MAX_S,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    run = PipelineRun.objects.latest("pk")
    assert run.state == "finished", run.error
    return run


def test_a_cluster_counts_what_there_is(standalone: Cluster, address: str) -> None:
    made = month.make(messages=300)

    run = count(made, standalone, address)

    assert stored() == plain(counted(made))
    assert stored_times() == timed(made)
    assert run.result["attempts"] == len(made.attempts)
    assert len(standalone.working()) == 2


@pytest.mark.e2e
def test_spark_submit_as_it_is_documented_counts_the_same(address: str, tmp_path: Path) -> None:
    made = month.make(messages=60)
    words = (settings.BASE_DIR / "deploy/pipeline/standalone/README.md").read_text()
    (lines,) = [some for some in re.findall(r"```sh\n(.*?)```", words, re.S) if "submit" in some]
    # A checkout of the test's own: the commands write a file there.
    for name in ("pipeline", "deploy"):
        (tmp_path / name).symlink_to(settings.BASE_DIR / name)
    # The path is part of Java's class path: Java's file of loaded classes fits only this one.
    lines = re.sub(r"([$]PWD/)?[.]venv", sys.prefix, lines)
    lines = lines.replace("/opt/hookstation", str(tmp_path))
    lines = lines.replace("spark://spark1.internal:7077", "local[2]")
    lines = f"{lines.rstrip()} --since={made.since.isoformat()}"
    session.ensure_java(tmp_path)
    known = {name: os.environ[name] for name in INHERITED if name in os.environ}

    done = subprocess.run(
        ["/bin/bash", "-ec", lines],
        cwd="/",
        env=known
        | {
            "DATABASE_URL": address,
            "HOOKSTATION_DATA_DIR": str(tmp_path),
            "HOOKSTATION_LAKE_LAG_S": "1",
        }
        | driver(),
        capture_output=True,
        text=True,
        timeout=MAX_S,
    )

    assert done.returncode == 0, done.stderr[-5000:]
    assert stored() == plain(counted(made))
    assert f"attempts: {len(made.attempts)}" in done.stdout


def test_nobody_on_the_drivers_machine_reads_the_address_of_the_database(chosen: Settings) -> None:
    """Spark options become command-line arguments, which every user of the machine can read."""
    secret, keys = "mysql://me:s3cret@db/x", "a-key-of-s3cret"
    chosen = replace(
        chosen,
        master="spark://somewhere:7077",
        read_url=secret,
        database_url=secret,
        encryption_keys=keys,
    )

    shown = [word for pair in session._conf(chosen, {}).getAll() for word in pair]

    assert not [word for word in shown if "s3cret" in word]
    assert session._environment(chosen) == {
        "HOOKSTATION_LAKE_READ_URL": secret,
        "HOOKSTATION_ENCRYPTION_KEYS": keys,
    }
