"""The example shops of each web framework, before and after, as consumers of a real broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hookstation_client import Hookstation

from tests.support.broker import wait_until
from tests.support.examples import COMPILED, PATIENCE_S, WebShop
from tests.support.signed import headers_of

pytestmark = pytest.mark.e2e


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
        body = b'{"id": 99, "article": "tea"}'
        headers = headers_of(body, made["secret"], id=sent[0].id, channel=channel)
        found = shop.post(body, headers)
        forged = shop.post(body, headers | {"webhook-id": "msg_forged"})

        assert found.status_code == 204
        assert forged.status_code == 401
        assert shop.orders() == [1, 2]
