"""The round trip of a delivery over real HTTP: five instants, checked by the consumer's clock."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from channels_app.core import ids
from delivery.models import Delivery
from tests.integration.delivery.test_acks import LONG, are, say_it
from tests.support import clocks, console, pumping
from tests.support.calling import Api
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply, Request

pytestmark = pytest.mark.django_db(transaction=True)
ANSWER_MS = 200
LATER_S = 50.0
CLOCK_S = 0.05
"""Tolerance in seconds for rounding and the tracking of the database's clock."""
INSTANTS = ("accepted_at", "leased_at", "sent_at", "responded_at", "acknowledged_at")
PARTS = ("waited_ms", "reached_ms", "answered_ms", "acknowledged_ms")


def shown() -> Any:
    """Return the only delivery, as the API shows it."""
    row = Delivery.objects.get()
    return Api(scopes=["read"]).get(f"/deliveries/{ids.to_public(ids.DELIVERY, row.id)}").json()


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def heard(request: Request) -> float:
    """Return when the consumer received the request, in Unix time."""
    # Of many comparisons of the clocks, the largest was interrupted least.
    return request.at + max(time.time() - time.monotonic() for _ in range(100))


@pytest.mark.seed("S3-16")
def test_the_api_shows_the_duration_of_each_step(receiver: Receiver) -> None:
    receiver.script("/hook", [Reply(500), Reply(200, delay_ms=ANSWER_MS)])
    consumer = make_consumer(make_channel(), receiver.url("/hook"))
    publish(consumer.channel, b"{}")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    said = shown()
    found = said["roundtrip"]
    assert found["accepted_at"] == said["accepted_at"]
    assert found["acknowledged_at"] == said["finished_at"]
    instants = [unix(found[name]) for name in INSTANTS]
    assert instants == sorted(instants)
    assert sum(found[name] for name in PARTS) == pytest.approx(found["total_ms"], abs=0.01)
    assert found["total_ms"] == pytest.approx((instants[-1] - instants[0]) * 1000, abs=2)
    assert found["answered_ms"] + found["reached_ms"] >= ANSWER_MS - CLOCK_S * 1000
    at = heard(receiver.requests()[-1])
    assert instants[1] - CLOCK_S <= at <= instants[3] + CLOCK_S
    assert instants[3] - at >= ANSWER_MS / 1000 - CLOCK_S


@pytest.mark.seed("S3-16")
def test_the_roundtrip_in_api_and_console_ends_with_the_acknowledgement_not_the_response(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator: Client = console.operator()
    consumer = make_consumer(make_channel(), receiver.url("/ok"), ack=LONG)
    with pumping.pumping() as pump:
        publish(consumer.channel, b"{}")
        pump_until(pump, are("awaiting_ack"))
        page = console.page_url(Delivery.objects.get())
        assert shown()["roundtrip"] is None, "it is not over"
        assert 'id="roundtrip"' not in console.look(operator, page)
        clocks.forward(monkeypatch)(LATER_S)
        (request,) = receiver.requests()
        assert say_it(request) == "on_time"
        pump_until(pump, all_finished)
    found = shown()["roundtrip"]
    assert found["acknowledged_ms"] >= (LATER_S - CLOCK_S) * 1000
    assert unix(found["acknowledged_at"]) - heard(request) >= LATER_S - CLOCK_S
    text = console.look(operator, page)
    assert 'id="roundtrip"' in text
    assert text.count('<rect x="') == len(PARTS)
    assert "ms from accepted to acknowledged" in text
