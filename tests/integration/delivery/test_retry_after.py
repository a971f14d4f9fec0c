"""Any ``Retry-After`` header of a consumer, on the wire and in the tables."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from channels_app.database import clock
from delivery.core.breaker import SLOW_CAP_S
from delivery.core.outcome import RETRY_AFTER_CAP_S, parse_retry_after
from delivery.models import Attempt, ConsumerHealth, Delivery
from tests.support.properties import quick
from tests.support.pumping import make_channel, make_consumer, publish, pump_until, pumping
from tests.support.receiver import Receiver, Reply

PLAIN_S = 30.0
SHORTEST_S, MAX_S = PLAIN_S * 0.8, PLAIN_S * 1.2
LATIN = st.characters(codec="latin-1", exclude_characters="\0\r\n")
WISHES = st.lists(
    st.integers(-(10**6), 10**6).map(str)
    | st.text("0123456789", min_size=1, max_size=70)
    | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(
        lambda then: format_datetime(then.replace(tzinfo=UTC), usegmt=True)
    )
    | st.text(LATIN, max_size=100),
    min_size=1,
    max_size=12,
)
HOSTILE = [
    *("-1", "0", "3600", "86401", "9" * 64, "9" * 4000, "1e308", "nan", "inf", "\xb2", "soon"),
    *("Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 99 Foo 2026"),
]


@pytest.mark.slow("pumps each example")
@pytest.mark.django_db(transaction=True)
@settings(quick, max_examples=5)
@given(WISHES)
@example(HOSTILE)
def test_each_delivery_obeys_retry_after_within_its_bounds(wishes: list[str]) -> None:
    channel = make_channel()
    with Receiver() as receiver, pumping() as pump:
        asked: dict[int, str] = {}
        for place, receive_request in enumerate(wishes):
            status = (503, 429)[place % 2]
            reply = Reply(status, headers=(("Retry-After", receive_request),))
            receiver.script(f"/{place}", [reply])
            consumer = make_consumer(channel, receiver.url(f"/{place}"), retry=[PLAIN_S])
            asked[consumer.id] = receive_request
        publish(channel, b"x")
        begin = clock.now()
        rows = Delivery.objects.filter(channel=channel)
        pump_until(pump, lambda: rows.filter(failure_count=1).count() == len(asked))
        end = clock.now()
    for row in rows:
        wish_s = parse_retry_after(asked[row.consumer_id], begin) or 0.0
        assert (row.state, row.reason) == ("queued", "retry")
        assert row.outcome in {"unavailable", "throttled"}
        assert row.due_at is not None
        # The delay to a date shrinks while the request is in flight.
        shortest = max(SHORTEST_S, wish_s - (end - begin).total_seconds())
        assert begin + timedelta(seconds=shortest) <= row.due_at
        assert row.due_at <= end + timedelta(seconds=max(MAX_S, wish_s))
        assert row.due_at <= end + timedelta(seconds=RETRY_AFTER_CAP_S)
    assert Attempt.objects.filter(delivery__in=rows).count() == len(asked)
    for health in ConsumerHealth.objects.filter(consumer_id__in=asked):
        assert health.slow_until is not None
        assert health.slow_until <= end + timedelta(seconds=SLOW_CAP_S)
