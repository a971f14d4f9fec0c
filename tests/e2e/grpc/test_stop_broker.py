"""The gRPC server as a process of the broker: its stop, its start, and TLS."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from delivery.grpc.hookstation_pb2 import Settlement
from tests.crash.counts import Counts
from tests.support import ports, streams
from tests.support.broker import Broker, running, wait_until
from tests.support.certificates import certificate
from tests.support.streams import PATIENCE_S, Client

pytestmark = pytest.mark.e2e


def test_a_stop_settles_what_workers_hold_and_does_not_wait_for_others(tmp_path: Path) -> None:
    with running(tmp_path, HOOKSTATION_WEB_WORKERS="1", **streams.setting()) as broker:
        streams.wait_for_grpc(broker)
        for channel in ("c", "idle"):
            broker.call("PUT", f"/channels/{channel}", 201, json={})
            broker.call("PUT", f"/channels/{channel}/consumers/all", 201, json={"mode": "pull"})
        counts = Counts(broker)
        items = [{"body": str(number)} for number in range(10)]
        broker.call("POST", "/channels/c/messages/batch", 207, json=items)
        with (
            Client.of(broker) as client,
            client.receive("c", credits=3, lease_s=3600) as stream,
            client.receive("idle", credits=3) as staying,
        ):
            staying.settle(Settlement.ACK)  # without leases: the stream is open now
            held = stream.messages(3)
            assert broker.process is not None
            os.kill(broker.process.pid, signal.SIGTERM)
            assert staying.next().stopping
            assert stream.next().stopping
            # The handlers end, and the worker says so on the same stream.
            for one in held:
                assert not stream.settle(Settlement.ACK, one.lease).failed
            stream.close()
            with pytest.raises(StopIteration):
                stream.next()
            assert broker.process.wait(15) == 0
    rows = dict(counts.read("SELECT state, COUNT(*) FROM delivery_delivery GROUP BY state"))
    assert rows.get("delivered") == 3
    assert "in_flight" not in rows


@contextmanager
def serving(broker: Broker, *arguments: str, **environment: str) -> Iterator[Any]:
    """Run `manage.py grpc` beside the broker."""
    process = subprocess.Popen(
        [*broker.program, "grpc", *arguments],
        cwd=broker.workplace,
        env=broker.environment | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_tls_by_certificate_files(broker: Broker, channel: str) -> None:
    chain, key = certificate()
    files = {
        "HOOKSTATION_GRPC_CERTIFICATE": str(chain),
        "HOOKSTATION_GRPC_CERTIFICATE_KEY": str(key),
    }
    target = f"127.0.0.1:{ports.claim()}"
    trusted = grpc.ssl_channel_credentials(chain.read_bytes())
    with (
        serving(broker, "--bind", target, **files),
        Client(target, broker.key, grpc.secure_channel(target, trusted)) as secure,
        Client(target, broker.key) as plain,
    ):
        wait_until(secure.is_served, PATIENCE_S, "TLS is not served")
        assert secure.publish(channel).id
        assert not plain.is_served()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HOOKSTATION_GRPC_ADDRESS": ""}, "Pass --bind, or set HOOKSTATION_GRPC_ADDRESS."),
        ({}, "Cannot serve gRPC on"),
        ({"HOOKSTATION_GRPC_CERTIFICATE": "/nowhere.pem"}, "go together"),
        (
            {
                "HOOKSTATION_GRPC_CERTIFICATE": "/nowhere.pem",
                "HOOKSTATION_GRPC_CERTIFICATE_KEY": "/nowhere.pem",
            },
            "No such file",
        ),
    ],
    ids=["no address", "taken address", "no key", "no file"],
)
def test_a_server_that_cannot_start_says_why(
    broker: Broker, environment: dict[str, str], said: str
) -> None:
    with serving(broker, **environment) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert said in output
        assert "Traceback" not in output
