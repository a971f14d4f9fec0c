"""Producer sequence numbers at a real broker: two web processes, concurrent requests."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.broker import Broker, running, wait_until
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.mysql]
SIDE_BY_SIDE, ROUNDS = 4, 15
SETTINGS = {"HOOKSTATION_WEB_WORKERS": "2", "HOOKSTATION_WEB_THREADS": "8"}


@pytest.mark.seed("S2-65")
def test_numbered_messages_are_delivered_in_order_whatever_their_arrival(tmp_path: Path) -> None:
    with Receiver() as receiver, running(tmp_path, **SETTINGS) as broker:
        broker.call("PUT", "/channels/rooms", 201, json={"reorder_window_ms": 5000})
        consumer = {"url": receiver.url("/ok"), "ordering": True}
        broker.call("PUT", "/channels/rooms/consumers/one", 201, json=consumer)
        numbers = list(range(1, SIDE_BY_SIDE * ROUNDS + 1))
        chance = random.Random(65)
        with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
            for start in range(0, len(numbers), SIDE_BY_SIDE):
                some = numbers[start : start + SIDE_BY_SIDE]
                chance.shuffle(some)
                answers = list(threads.map(lambda number: send(broker, number), some))
                assert [one.status_code for one in answers] == [202] * SIDE_BY_SIDE, answers
        wait_until(lambda: len(receiver.requests()) >= len(numbers), 60, "some do not come")
        came = [int(request.body) for request in receiver.requests()]
        assert came == numbers


def send(broker: Broker, number: int) -> Any:
    """Publish on a new connection, so that any process may get the request."""
    headers = {
        "Authorization": str(broker.http.headers["Authorization"]),
        "Hookstation-Ordering-Key": "room-7",
        "Hookstation-Producer-Seq": f"{number}",
        "Idempotency-Key": f"{number}",
    }
    url = f"{broker.base}/channels/rooms/messages"
    return requests.post(url, data=f"{number}", headers=headers, timeout=300)
