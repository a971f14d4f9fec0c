"""503 without the database: no write is acknowledged, and no process needs a restart."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.crash.traffic import Traffic, stored
from tests.support.broker import database_with_key, wait_until
from tests.support.outage import Lock, Proxy, between
from tests.support.wire import Web

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]
PATIENCE_S = 300.0
"""Longer than any healthy run, also on a busy machine. Seconds."""
MESSAGES = "/channels/orders/messages"
WRITES: list[tuple[str, str, Any]] = [
    ("POST", MESSAGES, "x"),
    ("POST", f"{MESSAGES}/batch", [{"body": "x"}]),
    ("PUT", "/channels/other", {}),
    ("PUT", "/channels/orders/consumers/shop", {"url": "http://127.0.0.1:9/"}),
    ("PATCH", "/channels/orders", {"description": "new"}),
    ("POST", "/producers/e2e/keys", {"all_channels": True}),
    ("POST", "/replays", {"filter": {"channel": "orders"}}),
]
READS: list[tuple[str, str, Any]] = [
    ("GET", "/channels/orders", None),
    ("GET", MESSAGES, None),
    ("GET", "/replays", None),
]
Broker = tuple[Web, Lock | Proxy]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A web server, and the means to cut off its database."""
    folder = tmp_path_factory.mktemp("outage")
    with (
        database_with_key(folder) as (url, key),
        between(url) as database,
    ):
        web = Web(folder, url)
        web.use(key)
        web.environment["DATABASE_URL"] = database.url
        try:
            web.start("--role", "web")
            web.call("PUT", "/channels/orders", 201)
            yield web, database
        finally:
            web.http.close()
            web.stop()


def ask(web: Web, method: str, path: str, value: Any = None) -> requests.Response:
    """Send one request; return the response, whatever its status."""
    return web.http.request(method, f"{web.base}{path}", json=value, timeout=PATIENCE_S)


@pytest.mark.trap("acknowledged but not stored")
def test_while_the_database_is_down_nothing_is_acknowledged(broker: Broker) -> None:
    web, database = broker
    everything = WRITES + ([] if database.can_read else READS)
    for wanted in (everything, WRITES[:1]):
        before = len(stored(web))
        with database.away():
            for method, path, value in wanted:
                answer = ask(web, method, path, value)
                assert answer.status_code == 503, (method, path, answer.text)
                assert answer.json()["code"] == "storage_unavailable"
                assert int(answer.headers["Retry-After"]) > 0
                assert "127.0.0.1" not in answer.text
                assert "sqlite" not in answer.text.lower()
        # The first request afterwards succeeds, in the same process.
        assert len(stored(web)) == before
        assert ask(web, "POST", MESSAGES, "x").status_code == 202
        assert len(stored(web)) == before + 1
    assert web.log().count("web started") == 1
    assert "Traceback" not in web.log()


def test_while_the_database_is_down_the_process_is_live_but_not_ready(broker: Broker) -> None:
    web, database = broker
    root = web.base.removesuffix("/api/v1")
    with database.away():
        assert requests.get(f"{root}/livez", timeout=PATIENCE_S).status_code == 200
        metrics = requests.get(f"{root}/metrics", timeout=PATIENCE_S)
        assert metrics.status_code == 200
        if not database.can_read:
            assert "hookstation_database_up 0.0" in metrics.text
            ready = requests.get(f"{root}/readyz", timeout=PATIENCE_S)
            assert ready.status_code == 503
            assert not ready.json()["checks"]["database"]["ok"]
    wait_until(web.is_ready, PATIENCE_S, "it is not ready again", web.log)


@pytest.mark.trap("no reconnection")
def test_a_producer_that_keeps_retrying_stores_each_message_once(broker: Broker) -> None:
    """Producers retry during outages: every 2xx is a stored row."""
    web, database = broker
    known = set(stored(web))
    # A refusal before the end of the body closes the connection.
    with Traffic(web, name="retry", producers=4, may_die=True) as traffic:
        for _ in range(3):
            with database.away():
                traffic.is_refused()
            traffic.flows(4)
    # 200 if a message was stored whose response was lost.
    assert {202, 503} <= {answer.status for answer in traffic.answers} <= {200, 202, 503}
    assert len(traffic.acknowledged) == traffic.keys
    assert set(stored(web)) - known == traffic.acknowledged
