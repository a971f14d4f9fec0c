"""The example shops of each web framework, before and after, as consumers of a real broker."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hookstation_client import Hookstation, sign

from tests.support.broker import wait_until
from tests.support.examples import COMPILED, PATIENCE_S, WebShop

pytestmark = pytest.mark.e2e


def signed(secret: str, id: str, body: bytes, channel: str) -> tuple[bytes, dict[str, str]]:
    """A delivery as the broker sends it: body and headers."""
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
def opened(folder: Path, framework: str, version: str) -> Iterator[WebShop]:
    shop = WebShop(folder, framework, version)
    try:
        yield shop
    finally:
        shop.kill()


@pytest.mark.parametrize("version", ["before", "after"])
@pytest.mark.parametrize(
    "framework", ["fastapi", "flask", "django-receiving", "express", "hono", *COMPILED]
)
def test_shop_stores_orders_once_and_rejects_invalid_ones(
    framework: str, version: str, hooks: Hookstation, channel: str, tmp_path: Path
) -> None:
    with opened(tmp_path, framework, version) as shop:
        made = hooks.register(
            channel, "shop", url=f"{shop.url}/hooks", events=["order.*"], retry=[1], max_attempts=3
        )
        shop.serve(made["secret"])
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
        # Rejected orders were tried once: `Hookstation-Retry: never`.
        dead = list(hooks.dead_letters(channel, "shop"))
        assert {(d["reason"], d["attempt_count"]) for d in dead} == {("permanent_failure", 1)}

        # A repeat is acknowledged and changes nothing, although its body holds another order here.
        repeat = signed(made["secret"], sent[0].id, b'{"id": 99, "article": "tea"}', channel)
        found = shop.post(*repeat)
        forged = shop.post(repeat[0], repeat[1] | {"webhook-id": "msg_forged"})

        assert found.status_code == 204
        assert forged.status_code == 401
        assert shop.orders() == [1, 2]
