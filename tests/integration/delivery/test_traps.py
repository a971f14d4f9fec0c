"""Mistakes that other brokers have made, each of them provoked here (docs/traps.md)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django_q.models import OrmQ

from channels_app.database import clock
from channels_app.models import Message, MessageBody
from channels_app.registry import consumers
from delivery.maintenance import sweeps
from delivery.models import Attempt, ConsumerHealth, Counter, Delivery, SweepRun
from delivery.queue import fanout
from tests.support import pumping
from tests.support.api import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory
from tests.support.principals import acting
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def losing_the_connection(after: int) -> Iterator[None]:
    """Lose the connection after some statements of a fan-out."""
    left = [after]

    def refuse(execute: Callable[..., Any], sql: str, *more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OperationalError(2013, "Lost connection during query")
        return execute(sql, *more)

    with connection.execute_wrapper(refuse):
        yield


@pytest.mark.trap("repeat of a stored but unsent message")
def test_a_message_reported_as_a_repeat_is_delivered(receiver: Receiver) -> None:
    """The process died after storing the message: the repeat stores nothing, the sweep fans out."""
    channel = ChannelFactory.create(slug="orders")
    make_consumer(channel, receiver.url("/ok"))
    api = Api(ApiKeyFactory.create(scopes=["publish"]))
    path, key = "/api/v1/channels/orders/messages", {"Idempotency_Key": "order-7"}
    first = api.call("POST", path, b"7", **key)
    repeat = api.call("POST", path, b"7", **key)
    assert (first.status, repeat.status, repeat.json["duplicate"]) == (202, 200, True)
    assert not Delivery.objects.exists()

    Message.objects.update(accepted_at=clock.now() - timedelta(minutes=1))
    assert sweeps.not_fanned_out() == 1
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
    assert [request.header("webhook-id") for request in receiver.requests()] == [first.json["id"]]


@pytest.mark.trap("retries of one message overwrite each other")
def test_each_consumer_of_a_message_is_retried_independently(receiver: Receiver) -> None:
    channel = make_channel()
    for name in ("one", "two", "three"):
        receiver.script(f"/{name}", [Reply(500), Reply(503), Reply(200)])
        make_consumer(channel, receiver.url(f"/{name}"), client_id=name)
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished, 20.0)
    assert set(Delivery.objects.values_list("state", "attempt_count")) == {("delivered", 3)}
    for name in ("one", "two", "three"):
        assert len(receiver.requests(f"/{name}")) == 3
    assert Attempt.objects.count() == 9


@pytest.mark.trap("messages for a disabled consumer are lost")
def test_messages_for_a_disabled_consumer_are_kept(receiver: Receiver) -> None:
    channel = make_channel()
    receiver.script("/hook", [Reply(410), Reply(200)])
    consumer = make_consumer(channel, receiver.url("/hook"))
    publish(channel, b"1")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        consumer.refresh_from_db()
        assert consumer.state == "disabled"
        pump.membership.next_beat = 0.0  # the pump reads the configuration again
        publish(channel, b"2", b"3")
        pump_until(pump, lambda: consumer.deliveries.filter(state="queued").count() == 2)
        consumers.resume(channel.slug, consumer.client_id, principal=acting("test"))
        pump_until(pump, all_finished)
    assert sorted(one.body for one in receiver.requests()) == [b"1", b"2", b"3"]


@pytest.mark.trap("a restart resets the failure count")
def test_the_failure_count_survives_a_pump_restart(receiver: Receiver) -> None:
    consumer = make_consumer(make_channel(), receiver.url("/status/500"), max_attempts=1)
    since = []
    for count in (1, 2, 3):
        publish(consumer.channel, b"x")
        fanout.fan_out(10, slot=0)
        with pumping.pumping() as pump:
            pump_until(pump, all_finished)
        health = ConsumerHealth.objects.get()
        assert health.consecutive_failures == count
        since.append(health.failing_since)
    assert since[0] is not None
    assert set(since) == {since[0]}


@pytest.mark.trap("a partly read list of consumers")
@pytest.mark.parametrize("after", range(8))
def test_an_interrupted_fan_out_is_atomic(after: int) -> None:
    channel = make_channel()
    for _ in range(3):
        make_consumer(channel, "http://127.0.0.1:9/")
    publish(channel, b"x", b"y")
    pumping.view_of(channel)
    with losing_the_connection(after), suppress(OperationalError):
        fanout.fan_out(100, slot=0)
    states = set(Message.objects.values_list("state", flat=True))
    assert (states, Delivery.objects.count()) in [({"accepted"}, 0), ({"dispatched"}, 6)]

    fanout.fan_out(100, slot=0)
    assert Delivery.objects.count() == 6
    assert set(Message.objects.values_list("state", "consumer_count")) == {("dispatched", 3)}
    assert Counter.totals() == pumping.recounted()


@pytest.mark.trap("poison rows starve others")
def test_a_hundred_unsendable_rows_do_not_block_others(receiver: Receiver) -> None:
    poisoned, healthy = make_channel(), make_channel()
    broken = make_consumer(poisoned, receiver.url("/never"))
    fine = make_consumer(healthy, receiver.url("/ok"))
    publish(poisoned, *[b"x"] * 100, priority=9)
    MessageBody.objects.update(data=b"\x01 what nobody can open")
    publish(healthy, b"1", b"2", b"3", priority=0)
    with pumping.pumping() as pump:
        pump_until(pump, all_finished, 20.0)
    assert set(fine.deliveries.values_list("state", flat=True)) == {"delivered"}
    ends = set(broken.deliveries.values_list("state", "reason", "attempt_count"))
    assert ends == {("dead", "integrity_error", 1)}
    assert receiver.requests("/never") == []


@pytest.mark.trap("a sweep that queues waiting rows again")
def test_sweeps_do_not_copy_waiting_rows() -> None:
    consumer = make_consumer(make_channel(), "http://127.0.0.1:9/")
    publish(consumer.channel, *[b"x"] * 20)
    fanout.fan_out(1000, slot=0)
    before = list(Delivery.objects.values_list("id", "due_at"))
    sweeps.run_due()  # creates the rows that hold the clocks
    for _ in range(2):
        SweepRun.objects.update(next_at=clock.now() - timedelta(seconds=1))
        assert sweeps.run_due() == len(sweeps.SWEEPS)
    assert list(Delivery.objects.values_list("id", "due_at")) == before
    assert OrmQ.objects.count() == 0
