"""The examples of FastAPI and Flask, before and after, as consumers of a real broker."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from hookstation_client import Hookstation, Outgoing, sign

from tests.support import ports
from tests.support.broker import ROOT, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
PATIENCE_S = 120.0
EXAMPLES = ROOT / "clients" / "examples"


class Shop:
    """One of the applications, served by a process of its own."""

    def __init__(self, folder: Path, framework: str, version: str) -> None:
        self.port = ports.claim()
        self.url = f"http://127.0.0.1:{self.port}"
        serve = {
            "fastapi": ["uvicorn", f"{version}:app", "--port", str(self.port)],
            "flask": ["flask", "--app", version, "run", "--port", str(self.port)],
        }
        self._command = [sys.executable, "-m", *serve[framework]]
        self._folder = EXAMPLES / framework
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "clients/python/src"),
            "SHOP_DB": str(folder / "shop.db"),
        }
        self._log = folder / "shop.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, secret: str) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment | {"HOOKSTATION_SECRET": secret},
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_there, PATIENCE_S, "the shop does not answer", self._log.read_text)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def orders(self) -> list[int]:
        found: list[int] = httpx.get(f"{self.url}/orders", timeout=60, trust_env=False).json()
        return found

    def post(self, body: bytes, headers: dict[str, str]) -> httpx.Response:
        url = f"{self.url}/hooks"
        return httpx.post(url, content=body, headers=headers, timeout=60, trust_env=False)

    def _is_there(self) -> bool:
        try:
            return httpx.get(f"{self.url}/orders", timeout=60, trust_env=False).is_success
        except httpx.TransportError:
            return False


def signed(secret: str, id: str, body: bytes, channel: str) -> tuple[bytes, dict[str, str]]:
    """A delivery as the broker would send it."""
    at = int(time.time())
    headers = {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secret, id, at, body),
        "hookstation-channel": channel,
        "hookstation-event-type": "order.created",
        "hookstation-attempt": "2",
    }
    return body, headers


@contextmanager
def opened(folder: Path, framework: str, version: str) -> Iterator[Shop]:
    shop = Shop(folder, framework, version)
    try:
        yield shop
    finally:
        shop.kill()


@pytest.mark.parametrize("version", ["before", "after"])
@pytest.mark.parametrize("framework", ["fastapi", "flask"])
def test_shop_takes_orders_once_and_rejects_for_good(
    framework: str, version: str, hooks: Hookstation, channel: str, tmp_path: Path
) -> None:
    with opened(tmp_path, framework, version) as shop:
        made = hooks.register(
            channel, "shop", url=f"{shop.url}/hooks", events=["order.*"], retry=[1], max_attempts=3
        )
        shop.start(made["secret"])
        bodies = [
            {"id": 1, "article": "tea"},
            {"id": 2, "article": "fresh bread"},
            {"id": 3, "article": "gold", "quantity": 1000},
            {"article": "nothing"},
        ]
        sent = [hooks.publish(channel, body, event_type="order.created") for body in bodies]
        wait_until(
            lambda: (
                sorted(d["state"] for d in hooks.deliveries(channel, "shop"))
                == ["Dead", "Dead", "Delivered", "Delivered"]
            ),
            PATIENCE_S,
            "not all is settled",
        )
        assert shop.orders() == [1, 2]
        # Rejected ones were tried once: `Hookstation-Retry: never`.
        dead = list(hooks.dead_letters(channel, "shop"))
        assert {(d["reason"], d["attempt_count"]) for d in dead} == {("permanent_failure", 1)}

        # A repeat is acknowledged and changes nothing, though it holds another order here.
        repeat = signed(made["secret"], sent[0].id, b'{"id": 99, "article": "tea"}', channel)
        found = shop.post(*repeat)
        forged = shop.post(repeat[0], repeat[1] | {"webhook-id": "msg_forged"})

        assert found.status_code == 204
        assert forged.status_code == 401
        assert shop.orders() == [1, 2]


@pytest.mark.parametrize("framework", ["fastapi", "flask"])
def test_killed_shop_loses_no_order(
    framework: str, hooks: Hookstation, channel: str, tmp_path: Path
) -> None:
    with opened(tmp_path, framework, "after") as shop:
        made = hooks.register(
            channel, "shop", url=f"{shop.url}/hooks", retry=[1], max_attempts=100, max_in_flight=2
        )
        shop.start(made["secret"])
        orders = [
            Outgoing({"id": n, "article": "tea"}, event_type="order.created") for n in range(40)
        ]
        hooks.publish_batch(channel, orders)
        wait_until(lambda: len(shop.orders()) >= 5, PATIENCE_S, "no order arrived")
        shop.kill()
        shop.start(made["secret"])

        wait_until(
            lambda: shop.orders() == list(range(40)),
            PATIENCE_S,
            "orders are missing",
            lambda: f"{len(shop.orders())} of 40",
        )
