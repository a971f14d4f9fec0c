"""Lists of deliveries, which API, portal and replays share: filters restrict, pages lose no row."""

import random
from datetime import timedelta

import pytest

from channels_app.core import times
from channels_app.database import clock, keyset
from channels_app.database.keyset import KeysetPage
from channels_app.models import Consumer
from delivery.models import Delivery
from delivery.serializers.filters import DeliveryFilter, DeliveryQuerySerializer
from tests.support.counts import make_deliveries
from tests.support.factories import ConsumerFactory

pytestmark = pytest.mark.django_db
QUERY = DeliveryQuerySerializer()


def read(
    consumer: Consumer, query: dict[str, str], limit: int = 100, **place: int | None
) -> KeysetPage[Delivery]:
    """Return a page of the deliveries that a query selects."""
    wanted = DeliveryFilter.of(QUERY.read(query))
    ranges = wanted.ranges(consumer.id)
    return keyset.read(ranges, limit, condition=wanted.condition, **place)


def test_each_filter_restricts() -> None:
    consumer = ConsumerFactory.create()
    now = clock.now()
    traits: dict[str, dict[str, object]] = {
        "old": {"accepted_at": now - timedelta(days=2), "status_code": 503},
        "slow": {"outcome": "timeout", "status_code": None},
        "paid": {"event_type": "order.paid", "state": "delivered"},
        "upper": {"event_type": "Order.Paid"},
        "other": {"event_type": "orders.paid"},
        "bare": {"event_type": "order"},
    }
    names = {make_deliveries(consumer, 1, **one)[0].id: name for name, one in traits.items()}
    make_deliveries(ConsumerFactory.create(channel=consumer.channel), 1)
    day = times.text(now - timedelta(days=1))
    everything = [*traits]
    for query, wanted in (
        ({}, everything),
        ({"outcome": "timeout"}, ["slow"]),
        ({"status_code": "503"}, ["old"]),
        ({"status_code": "503", "outcome": "timeout"}, []),
        ({"event_type": "order.paid"}, ["paid"]),
        ({"event_type": "order.*"}, ["paid"]),
        ({"event_type": "*"}, everything),
        ({"to": day}, ["old"]),
        ({"from": day}, everything[1:]),
        ({"from": day, "outcome": "server_error", "event_type": "order"}, ["bare"]),
        ({"state": "delivered"}, ["paid"]),
        ({"state": "Dead", "outcome": "timeout"}, ["slow"]),
    ):
        assert [names[row.id] for row in read(consumer, query).rows] == wanted[::-1], query


@pytest.mark.parametrize("is_rare", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_pages_hold_every_row_once_in_both_directions(
    monkeypatch: pytest.MonkeyPatch, seed: int, is_rare: bool
) -> None:
    """Even when the scan stops before it has filled a page, or finds nothing."""
    dice = random.Random(seed)
    monkeypatch.setattr(keyset, "SCAN_ROWS", (3, 5))
    consumer = ConsumerFactory.create()
    rows = make_deliveries(consumer, 60)
    for row in rows:
        row.state = dice.choice(["dead", "delivered", "cancelled"])
        row.outcome = dice.choices(["timeout", "gone"], [1, 9 if is_rare else 1])[0]
    Delivery.objects.bulk_update(rows, ["state", "outcome"])
    wanted = [row.id for row in reversed(rows) if row.outcome == "timeout"]
    limit = dice.choice([1, 2, 3, 7])

    def follow(page: KeysetPage[Delivery], word: str) -> list[KeysetPage[Delivery]]:
        found = [page]
        while (place := getattr(found[-1], word)) is not None:
            found.append(read(consumer, {"outcome": "timeout"}, limit, **{word: place}))
        return found

    def ids_of(pages: list[KeysetPage[Delivery]]) -> list[int]:
        return [row.id for page in pages for row in page.rows]

    forward = follow(read(consumer, {"outcome": "timeout"}, limit), "below")
    assert ids_of(forward) == wanted
    assert all(len(page.rows) <= limit for page in forward)
    assert any(page.is_partial for page in forward) or not is_rare
    assert ids_of(follow(forward[-1], "above")[::-1]) == wanted
    half = len(forward) // 2
    assert ids_of(follow(forward[half], "below")) == ids_of(forward[half:])
