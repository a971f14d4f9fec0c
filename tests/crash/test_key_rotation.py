"""Two hosts on one database whose encryption keys change one after the other, or do not match."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from channels_app.core.encryption import Keyring, generate_key
from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S
from tests.crash.hosts import two_hosts
from tests.support.broker import ROOT, Broker, heard_ids, wait_until
from tests.support.receiver import Receiver

pytestmark = pytest.mark.e2e
OLD, NEW = generate_key(), generate_key()
SETTINGS = {"HOOKSTATION_WEB_WORKERS": "1", "HOOKSTATION_SHUTDOWN_GRACE_S": "4"}
CONSUMERS, MESSAGES = 4, 20
ACTIVATE = (
    "from channels_app import conf; from channels_app.registry import data_encryption; "
    "data_encryption.activate(conf.keyring().primary_id)"
)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two hosts with the old key."""
    with two_hosts(tmp_path, HOOKSTATION_ENCRYPTION_KEYS=OLD, **SETTINGS) as pair:
        yield pair


def restart(broker: Broker, *keys: str) -> None:
    """Restart the host with these encryption keys."""
    broker.stop()
    broker.environment["HOOKSTATION_ENCRYPTION_KEYS"] = ",".join(keys)
    broker.start()


def refused(broker: Broker, *arguments: str, keys: str = "") -> str:
    """Run a command that must fail; return its error output."""
    environment = dict(broker.environment)
    if keys:
        environment["HOOKSTATION_ENCRYPTION_KEYS"] = keys
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stdout
    return done.stderr


def publish(broker: Broker) -> None:
    for number in range(MESSAGES):
        broker.call("POST", "/channels/orders/messages", 202, json={"n": number})


@pytest.mark.trap("an encryption key that only one host has")
@pytest.mark.trap("a start with the wrong key")
def test_keys_of_two_hosts_change_and_nothing_is_lost_or_charged(
    hosts: tuple[Broker, Broker], receiver: Receiver
) -> None:
    one, other = hosts
    old_id, new_id = (Keyring.from_texts([key]).primary_id for key in (OLD, NEW))
    one.call("PUT", "/channels/orders", 201, json={})
    for number in range(CONSUMERS):
        body = {"url": receiver.url(f"/{number}")}
        one.call("PUT", f"/channels/orders/consumers/c{number}", 201, json=body)
    wait_until(lambda: _knows(other), TIMEOUT_S, "the other host does not know the channel")
    publish(other)

    # A host without the installation's key does not start.
    said = refused(one, "broker", "--bind", "127.0.0.1:1", keys=generate_key())
    assert f"encrypts with the key {old_id}" in said

    # A rolling restart: the first host has the new key, the other does not have it yet.
    restart(one, NEW, OLD)
    publish(one)
    publish(other)
    said = refused(one, "rotate_keys", "--wait", "0")
    assert f"have not read key {new_id}" in said
    assert "web" in said
    assert "pump" in said

    # When the new key is activated anyway, the other host leaves what it cannot decrypt.
    one.manage("shell", "-c", ACTIVATE)
    wait_until(lambda: not other.is_ready(), TIMEOUT_S, "the other host calls itself ready")
    refusal = other.call("POST", "/channels/orders/messages", 503, json={"n": 0})
    assert refusal["code"] == "key_missing"
    publish(one)
    _all_came(one, receiver, 4 * MESSAGES)

    restart(other, NEW, OLD)
    publish(other)
    assert f"Everything is encrypted with key {new_id}." in one.manage(
        "rotate_keys", "--wait", "30"
    )
    restart(one, NEW)
    publish(one)
    _all_came(one, receiver, 6 * MESSAGES)


def _knows(broker: Broker) -> bool:
    answer = broker.http.get(f"{broker.base}/channels/orders", timeout=60)
    return answer.status_code == 200


def _all_came(broker: Broker, receiver: Receiver, count: int) -> None:
    """Check that each message reached each consumer at its first attempt."""
    Counts(broker).settle()
    for number in range(CONSUMERS):
        heard = heard_ids(receiver, f"/{number}")
        assert len(heard) == len(set(heard)) == count
        requests_ = receiver.requests(f"/{number}")
        assert {request.header("hookstation-attempt") for request in requests_} == {"1"}
