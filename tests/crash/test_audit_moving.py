"""The audit beside a running broker: what moves while it looks is no fault."""

import threading
from pathlib import Path

import pytest

from tests import broker as brokers
from tests.broker import Broker
from tests.receiver import Receiver, Reply

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
AUDITS = 25
LOOK = f"""
from datetime import timedelta
from io import StringIO
from django.core.management import call_command
from django.utils import timezone
from channels_app.models import Channel, Consumer, DirectoryVersion
# As old as they would be: of consumers that have just changed nobody can say what they wanted.
then = timezone.now() - timedelta(hours=1)
Channel.objects.update(updated_at=then)
Consumer.objects.update(updated_at=then)
DirectoryVersion.bump()
for place in range({AUDITS}):
    out = StringIO()
    try:
        call_command("audit", "--limit-ids", "3", stdout=out)
    except SystemExit:
        print("OFF in audit", place, out.getvalue())
print("last:", out.getvalue())
"""


def test_what_moves_is_no_fault(receiver: Receiver, tmp_path: Path) -> None:
    receiver.script("/flaky", [Reply(500), Reply(200), Reply(503)] * 2000)
    with brokers.running(tmp_path) as broker:
        broker.call("PUT", "/channels/orders", 201, json={})
        for name, path in (("well", "/well"), ("flaky", "/flaky"), ("dead", "/status/500")):
            broker.call(
                "PUT",
                f"/channels/orders/consumers/{name}",
                201,
                json={"url": receiver.url(path), "retry": [0.05, 0.05], "max_attempts": 3},
            )
        done = threading.Event()
        publisher = threading.Thread(target=publish, args=(broker, done))
        publisher.start()
        try:
            said = broker.manage("shell", "-c", LOOK)
        finally:
            done.set()
            publisher.join()
        assert "OFF" not in said, said
        assert "All is accounted for" in said
        assert len(receiver.requests("/well")) > AUDITS


def publish(broker: Broker, done: threading.Event) -> None:
    """As fast as it is taken; dead letters are replayed meanwhile, and some messages cancelled."""
    for place in range(100_000):
        if done.is_set():
            return
        items = [{"body": "x", "event_type": "order.paid"} for _ in range(20)]
        answer = broker.call("POST", "/channels/orders/messages/batch", 207, json=items)
        if place % 5 == 0:
            broker.call("POST", "/replays", 202, json={"filter": {"channel": "orders"}})
            name = answer["items"][0]["id"]
            broker.http.delete(f"{broker.base}/messages/{name}", timeout=20)
