"""A whole broker with debug logging: what it runs, and what its log must not contain."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from channels_app.core.encryption import generate_key
from tests.support.broker import Broker, running, wait_until
from tests.support.receiver import Receiver, Reply

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]

BODY, ANSWER, HEADER, PASSWORD, FORGED = (
    f"{name}-nobody-shall-read" for name in ("body", "answer", "header", "password", "forged")
)
PATHS = {"fine": 200, "failing": 500, "moved": 302, "gone": 410, "garbage": 200}
"""Response status by consumer."""
KEY = "hsk_" + "a" * 16 + "_" + "b" * 52
"""Has the form of an API key, but is not one."""


SWEPT = """
import time
from delivery.models import SweepRun
from delivery.maintenance.sweeps import SWEEPS
from django_q.models import Schedule
for _ in range(60):
    run = set(SweepRun.objects.exclude(last_duration_ms=None).values_list("name", flat=True))
    if run >= {sweep.name for sweep in SWEEPS} and Schedule.objects.exists():
        print("all of them")
        break
    time.sleep(0.5)
"""


@dataclass(frozen=True, slots=True)
class House:
    """A broker that logs everything, and the secrets that its log must not contain."""

    broker: Broker
    secrets: dict[str, str]


@pytest.fixture
def house(tmp_path: Path, receiver: Receiver) -> Iterator[House]:
    ring = generate_key()
    talkative = {"HOOKSTATION_LOG_LEVEL": "DEBUG", "HOOKSTATION_ENCRYPTION_KEYS": ring}
    with running(tmp_path, **talkative) as broker:
        secrets = {
            "the API key": str(broker.http.headers["Authorization"]).split("_")[2],
            "the encryption key": ring,
            "SECRET_KEY": broker.environment["SECRET_KEY"],
        }
        if "mysql:" in broker.environment["DATABASE_URL"]:
            secrets["the database's password"] = broker.environment["DATABASE_URL"]
        broker.call("PUT", "/channels/hooks", 201, json={})
        for name, status in PATHS.items():
            head = b"garbage " + ANSWER.encode() if name == "garbage" else None
            reply = Reply(raw=head) if head else Reply(status, ANSWER.encode())
            receiver.script(f"/{name}", [reply])
            values = {
                "url": receiver.url(f"/{name}"),
                "headers": {"Authorization": f"Basic {HEADER}"},
                "max_attempts": 1,
            }
            made = broker.call("PUT", f"/channels/hooks/consumers/{name}", 201, json=values)
            secrets[f"the secret of {name}"] = made["secret"].removeprefix("whsec_")
        yield House(broker, secrets)


@pytest.mark.smoke
@pytest.mark.trap("secrets in the log")
@pytest.mark.trap("a sweep that is not scheduled")
def test_whole_broker_runs_every_sweep_and_logs_no_secrets_or_bodies(
    house: House, receiver: Receiver
) -> None:
    """One start checks both. A sweep that is tested but never scheduled would go unnoticed."""
    broker = house.broker
    publish_what_is_taken_and_what_is_not(broker)
    knock(broker)

    def is_over() -> bool:
        found = broker.call("GET", "/channels/hooks/messages?limit=1", 200)["items"]
        message = broker.call("GET", f"/messages/{found[0]['id']}", 200)
        return all(one["state"] in {"Delivered", "Dead"} for one in message["deliveries"])

    wait_until(is_over, 30, "the message is still on its way", broker.log)
    for name in PATHS:
        assert f'"{BODY}"'.encode() in {request.body for request in receiver.requests(f"/{name}")}
    assert "all of them" in broker.manage("shell", "-c", SWEPT)
    assert broker.stop() == 0

    said = broker.log()
    assert "web started" in said
    for name, secret in house.secrets.items():
        assert secret not in said, f"{name} is in the log"
    for marker in (BODY, ANSWER, HEADER, PASSWORD, FORGED, KEY, KEY.split("_")[2], "whsec_"):
        assert marker not in said
    assert not re.search(r"hsk_[a-z2-7]{16}_", said)
    assert "Traceback" not in said


def publish_what_is_taken_and_what_is_not(broker: Broker) -> None:
    """Publish one message for every consumer, then send each kind of refused request."""
    schema = {"schema": {"type": "object"}}
    broker.call("PUT", "/channels/hooks/event-types/order.strict", 201, json=schema)
    path, body = "/channels/hooks/messages", f'"{BODY}"'
    once = {"Idempotency-Key": "once", "Hookstation-Header-X-Token": FORGED}
    broker.call("POST", path, 202, data=body, headers=once)
    broker.call("POST", path, 409, data=body + " ", headers=once)
    broker.call("POST", path, 422, data=body, headers={"Hookstation-Event-Type": "order.strict"})
    broker.call("POST", path, 422, data=body, headers={"Hookstation-Priority": FORGED})
    broker.call("POST", path, 422, data=body, headers={"Hookstation-Header-Cookie": FORGED})
    broker.call("POST", path, 415, data=body, headers={"Content-Encoding": "gzip"})
    broker.call("POST", path, 401, data=body, headers={"Authorization": f"Bearer {KEY}"})
    broker.call("POST", path, 401, data=body, headers={"Authorization": f"Bearer {FORGED}"})
    kind = {"Content-Type": "application/json"}
    broker.call("POST", f"{path}/batch", 400, data=f'[{{"body": "{BODY}"}}, ', headers=kind)
    broker.call("POST", f"{path}/batch", 207, json=[{"body": BODY, "priority": FORGED}])
    bad = {"url": f"http://me:{FORGED}@127.0.0.1/", "headers": {"X-A": f"{FORGED}\n"}}
    broker.call("PUT", "/channels/hooks/consumers/bad", 422, json=bad)
    broker.call("POST", "/channels/hooks/consumers/fine/secrets", 201, json={})
    broker.call("POST", "/channels/hooks/consumers/failing/test", 200, json={})


def knock(broker: Broker) -> None:
    """Sign in with a wrong password, then with a forged CSRF token."""
    root = broker.base.removesuffix("/api/v1")
    with requests.Session() as browser:
        browser.trust_env = False
        page = browser.get(f"{root}/accounts/login/", timeout=60).text
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert found
        form = {"login": "mia", "password": PASSWORD, "csrfmiddlewaretoken": found[1]}
        answer = browser.post(f"{root}/accounts/login/", form, timeout=60)
        assert "not correct" in answer.text
        form["csrfmiddlewaretoken"] = FORGED
        assert browser.post(f"{root}/accounts/login/", form, timeout=60).status_code == 403
