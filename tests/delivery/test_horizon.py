"""The horizon: each consumer's earliest due instant, whatever its level."""

from datetime import timedelta

import pytest

from channels_app import clock
from delivery.steps import dispatch, horizon
from tests.pumping import make_channel, make_consumer, publish

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"


def test_next_due_says_when_each_consumer_has_something() -> None:
    soon = clock.now() + timedelta(hours=1)
    consumer, other = (make_consumer(make_channel(), NOWHERE) for _ in range(2))
    publish(consumer.channel, b"x", due_at=soon, priority=0)
    publish(consumer.channel, b"x", due_at=soon + timedelta(hours=1), priority=9)
    dispatch.dispatch(1000, slot=0)
    found = horizon.next_due([consumer.id, other.id])
    assert set(found) == {consumer.id}
    assert abs(found[consumer.id] - soon) < timedelta(milliseconds=1)
