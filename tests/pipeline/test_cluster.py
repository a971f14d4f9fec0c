"""Jobs on a cluster: a standalone master with two workers answers as this machine alone does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db.models import Count

from delivery.models import Attempt, Delivery
from pipeline import session
from pipeline.settings import Settings
from tests.pipeline import month
from tests.pipeline.standalone import Cluster, cluster

pytestmark = pytest.mark.django_db(transaction=True)

ASK = """
import json, sys
from datetime import UTC, datetime
from pipeline import session, settings
from pipeline.database import Database
from pipeline.frames import Frames
chosen = settings.read()
database = Database(chosen.database_url)
with session.start(chosen, "question") as spark:
    frames = Frames(spark, database, chosen)
    until = datetime.now(UTC)
    tried = frames.attempts(None, until, ["consumer_id", "outcome"])
    kept = frames.deliveries(None, until, ["consumer_id", "state"])
    rows = tried.join(kept.groupBy("consumer_id").count(), "consumer_id")
    rows = rows.groupBy("consumer_id", "outcome").count().collect()
    places = spark.sparkContext.parallelize(range(8), 8).map(lambda _: __import__("os").getppid())
    json.dump({
        "rows": sorted([row["consumer_id"], row["outcome"], row["count"]] for row in rows),
        "options": [value for _, value in spark.sparkContext.getConf().getAll()],
        "processes": len(set(places.collect())),
    }, sys.stdout)
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def ask(master: str, environment: dict[str, str], address: str, folder: Path) -> Any:
    """The question's answer, asked by a program of its own."""
    environment = {**os.environ, **environment, "DATABASE_URL": address}
    environment |= {"HOOKSTATION_SPARK_MASTER": master, "HOOKSTATION_DATA_DIR": str(folder)}
    environment |= {"HOOKSTATION_LAKE_LAG_S": "1", "PYTHONPATH": str(settings.BASE_DIR)}
    for name in ("HOOKSTATION_LAKE", "HOOKSTATION_LAKE_READ_URL"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_cluster_answers_as_the_database_does(
    standalone: Cluster, address: str, tmp_path: Path
) -> None:
    month.make(messages=300)

    answer = ask(standalone.master, standalone.environment, address, tmp_path)

    tried = Attempt.objects.values_list("delivery__consumer_id", "outcome")
    assert answer["rows"] == sorted(list(row) for row in tried.annotate(Count("id")))
    assert len(answer["rows"]) > Delivery.objects.values("consumer_id").distinct().count()
    assert len(standalone.executors()) == 2
    assert answer["processes"] == 2


def test_nobody_on_the_drivers_machine_reads_the_address_of_the_database(
    chosen: Settings,
) -> None:
    """Spark's options are words of a command, which everybody may see."""
    secret = "mysql://me:s3cret@db/x"
    chosen = replace(chosen, master="spark://somewhere:7077", bulk_url=secret, database_url=secret)

    shown = [word for pair in session._conf(chosen, {}).getAll() for word in pair]

    assert not [word for word in shown if "s3cret" in word]
    assert session._environment(chosen) == {"HOOKSTATION_LAKE_READ_URL": secret}
