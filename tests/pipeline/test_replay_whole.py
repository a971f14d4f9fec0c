"""The whole path: a message that only the lake has arrives unchanged at a real receiver again."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker
from standardwebhooks.webhooks import Webhook

from tests.pipeline.standalone import INHERITED
from tests.support import broker as broker_module
from tests.support.broker import ROOT, Broker, heard_ids, wait_until
from tests.support.receiver import Receiver, Request

pytestmark = pytest.mark.e2e

ARCHIVE = """
from datetime import UTC, datetime
from pipeline import settings
from tests.pipeline import archiving
archiving.archive(settings.read(), datetime.now(UTC))
"""
NUMBER = 30
RUN_S = 900


def pipeline(broker: Broker, *arguments: str) -> subprocess.Popen[str]:
    """Start a job as people start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=ROOT,
        env={name: os.environ[name] for name in INHERITED if name in os.environ}
        | broker.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """Wait until the job ends successfully; return its output."""
    text, _ = process.communicate(timeout=RUN_S)
    assert process.returncode == 0, text
    return text


def is_signed(request: Request, secret: str) -> bool:
    """Whether the signature is valid, without a limit on its age."""
    at = datetime.fromtimestamp(int(request.header("webhook-timestamp") or 0), UTC)
    wanted = Webhook(secret).sign(request.header("webhook-id") or "", at, request.body.decode())
    return wanted in (request.header("webhook-signature") or "").split()


def test_a_message_out_of_the_lake_arrives_again(
    tmp_path: Path, receiver: Receiver, django_db_blocker: DjangoDbBlocker
) -> None:
    lake = tmp_path / "lake"
    settings: dict[str, Any] = {
        "HOOKSTATION_LAKE": str(lake),
        "HOOKSTATION_LAKE_LAG_S": "1",
        "HOOKSTATION_SPARK_MASTER": "local[1]",
        "HOOKSTATION_WEB_WORKERS": "1",
    }
    with (
        django_db_blocker.unblock(),
        broker_module.running(tmp_path, **settings) as broker,
    ):
        broker.environment["HOOKSTATION_LAKE_READ_URL"] = broker.environment["DATABASE_URL"]
        broker.call("PUT", "/channels/orders", 201, json={})
        values = {"url": receiver.url("/one")}
        secret = broker.call("PUT", "/channels/orders/consumers/one", 201, json=values)["secret"]
        bodies = {}
        for number in range(NUMBER):
            body = b'{"number": %d}' % number
            answer = broker.http.post(f"{broker.base}/channels/orders/messages", data=body)
            bodies[answer.json()["id"]] = body
        receiver.wait_for(NUMBER, timeout=300, path="/one")
        wait_until(lambda: delivered(broker) == NUMBER, 60, "not all is delivered", broker.log)
        broker.manage("shell", "-c", ARCHIVE)
        first = next(iter(bodies))
        broker.call("GET", f"/messages/{first}", 404)

        # The first run is killed in the middle, then the same command runs again.
        asked = ("replay", "--consumer", "orders/one", "--rate", "2", "--reason", "lost")
        process = pipeline(broker, *asked)
        receiver.wait_for(NUMBER + 5, timeout=RUN_S, path="/one")
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        wait_until(lambda: pipeline_lock_is_over(broker), 90, "the lock holds")
        ended(pipeline(broker, *asked))
        receiver.wait_for(2 * NUMBER, timeout=300, path="/one")
        wait_until(lambda: delivered(broker) == NUMBER, 60, "not all is delivered", broker.log)
        heard = heard_ids(receiver, "/one")
        assert sorted(heard) == sorted([*bodies, *bodies])
        assert all(is_signed(request, secret) for request in receiver.requests("/one"))
        for request in receiver.requests("/one"):
            assert request.body == bodies[request.header("webhook-id") or ""]
        assert "All is accounted for" in broker.manage("reconcile", "--grace", "0s")


def delivered(broker: Broker) -> int:
    """How many deliveries are stored as delivered."""
    with closing(sqlite3.connect(broker.folder / "broker.sqlite3", timeout=60)) as database:
        sql = "SELECT count(*) FROM delivery_delivery WHERE state = 'delivered'"
        number: int = database.execute(sql).fetchone()[0]
    return number


def pipeline_lock_is_over(broker: Broker) -> bool:
    """Whether another run of the job may begin."""
    with closing(sqlite3.connect(broker.folder / "broker.sqlite3", timeout=60)) as database:
        sql = "SELECT count(*) FROM delivery_pipelinelock WHERE until > ?"
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        number: int = database.execute(sql, [now]).fetchone()[0]
    return number == 0
