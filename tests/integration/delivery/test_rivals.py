"""Concurrent threads on one database: the first one wins, and nothing is half done."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests

from channels_app.core.errors import Conflict
from channels_app.database import clock
from channels_app.models import Consumer, Message
from channels_app.registry import consumers
from delivery import replay
from delivery.core.lifecycle import ClaimedDelivery, DeliveryState, Reason, Transition
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Counter, Delivery
from delivery.pull import backlog
from delivery.queue import cancel, claim, fanout, settle
from delivery.queue.claim import ClaimRequest
from delivery.queue.settle import Result
from tests.support import pumping
from tests.support.broker import database_with_key
from tests.support.counts import make_deliveries
from tests.support.factories import ConsumerFactory
from tests.support.principals import acting
from tests.support.pumping import make_channel, make_consumer, publish
from tests.support.threads import at_once
from tests.support.waiting import until
from tests.support.wire import Web

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mariadb]
NOWHERE = "http://127.0.0.1:9/"
ALICE = acting("user:alice", "a test")
DELIVERED = Transition(DeliveryState.DELIVERED, Reason.DELIVERED, None, False)
ROWS = 60


@pytest.fixture
def consumer() -> Consumer:
    return make_consumer(make_channel(), NOWHERE)


def queue(consumer: Consumer) -> None:
    publish(consumer.channel, *[b"x"] * ROWS)
    fanout.fan_out(1000, slot=0)


def take(
    consumer: Consumer, limit: int, owner: int, now: datetime | None = None
) -> list[ClaimedDelivery]:
    want = ClaimRequest(consumer.id, limit, 30_000, owner)
    return claim.claim([want], now=now or clock.now(), slot=owner).rows


def close(row: ClaimedDelivery, owner: int) -> int:
    worker = f"worker {owner}"
    result = Result(row, DELIVERED, Outcome.DELIVERED, datetime.now(UTC), worker, status=200)
    return settle.settle([result], now=clock.now(), slot=owner)


def test_a_cancellation_and_a_claim_of_the_same_rows_never_both_succeed(
    consumer: Consumer,
) -> None:
    queue(consumer)
    ids = list(Delivery.objects.order_by("-id").values_list("id", flat=True))
    taken: list[int] = []
    cancelled: list[int] = []

    def claimer() -> None:
        while rows := take(consumer, 3, owner=1):
            taken.extend(row.id for row in rows)
            until(lambda: cancelled, "one is cancelled")

    def canceller() -> None:
        for key in ids:
            with suppress(Conflict):
                cancel.cancel_one(key, ALICE, now=clock.now(), slot=2)
                cancelled.append(key)
            until(lambda: taken, "some are claimed")

    at_once(claimer, canceller)
    taken += [row.id for row in take(consumer, ROWS, owner=1)]
    assert sorted(taken + cancelled) == sorted(ids)
    assert Counter.totals() == pumping.recounted()


def test_a_consumer_that_is_retired_during_the_fan_out_gets_all_of_a_message_or_nothing(
    consumer: Consumer,
) -> None:
    other = make_consumer(consumer.channel, NOWHERE)
    publish(consumer.channel, *[b"x"] * ROWS)
    slug = consumer.channel.slug

    def fan_out() -> None:
        while fanout.fan_out(4, slot=1).message_count:
            pass

    def retire() -> None:
        until(Delivery.objects.exists, "the fan-out has begun")
        consumers.retire(slug, consumer.client_id, principal=acting("user:alice"))

    at_once(fan_out, retire)
    while cancel.cancel_retired(clock.now(), slot=2, batch=1000):
        pass
    retired = Delivery.objects.filter(consumer=consumer)
    assert 4 <= retired.count() <= ROWS
    assert set(retired.values_list("state", flat=True)) == {"cancelled"}
    assert Delivery.objects.filter(consumer=other, state="queued").count() == ROWS
    made = sum(Message.objects.values_list("consumer_count", flat=True))
    assert made == Delivery.objects.count()
    assert Counter.totals() == pumping.recounted()


def test_late_workers_and_their_successors_settle_each_attempt_once(
    consumer: Consumer,
) -> None:
    queue(consumer)
    late = take(consumer, ROWS, owner=1)
    later = clock.now() + timedelta(seconds=31)
    closed = {1: 0, 2: 0}
    again: list[ClaimedDelivery] = []

    def come_back() -> None:
        closed[1] = sum(close(row, 1) for row in reversed(late))

    def take_over() -> None:
        while rows := take(consumer, 4, owner=2, now=later):
            again.extend(rows)
            closed[2] += sum(close(row, 2) for row in rows)

    at_once(come_back, take_over)
    assert closed[2] == len(again)
    assert closed[1] + closed[2] == ROWS
    assert set(Delivery.objects.values_list("state", flat=True)) == {"delivered"}
    assert Attempt.objects.filter(outcome="delivered").count() == ROWS
    assert Attempt.objects.filter(outcome="lease_expired").count() == len(again)
    assert Counter.totals() == pumping.recounted()


def test_concurrent_replays_of_one_delivery_happen_once(consumer: Consumer) -> None:
    ids = [row.id for row in make_deliveries(consumer, 20)]
    done: list[int] = []

    def ask() -> None:
        for key in ids:
            with suppress(Conflict):
                replay.replay_one(key, ALICE, now=clock.now())
                done.append(key)

    at_once(ask, ask, ask)
    assert sorted(done) == sorted(ids)
    assert set(Delivery.objects.values_list("state", "version")) == {("queued", 2)}
    assert Counter.totals() == pumping.recounted()


@pytest.fixture
def webs(tmp_path: Path) -> Iterator[tuple[Web, Web]]:
    """Two web servers that share a database but no folder, as on two hosts."""
    with database_with_key(tmp_path) as (url, key):
        webs = []
        for name in ("one", "other"):
            folder = tmp_path / name
            folder.mkdir()
            webs.append(Web(folder, url, HOOKSTATION_WEB_WORKERS="1"))
        one, other = webs
        one.use(key)
        other.http.headers.update(one.http.headers)
        try:
            for web in webs:
                web.start("--role", "web")
            yield one, other
        finally:
            for web in webs:
                web.http.close()
                if web.process is not None:
                    web.stop()


@pytest.mark.slow("starts two brokers")
@pytest.mark.e2e
def test_a_revoked_key_stops_working_in_every_process(
    webs: tuple[Web, Web],
) -> None:
    one, _ = webs
    one.call("PUT", "/channels/orders", 201, json={})
    one.call("PUT", "/producers/shop", 201, json={})
    key = one.call("POST", "/producers/shop/keys", 201, json={"all_channels": True})
    answers: list[list[int]] = [[], []]
    stopped = threading.Event()

    def use(place: int) -> None:
        headers = {"Authorization": f"Bearer {key['key']}"}
        url = f"{webs[place].base}/channels/orders/messages"
        while not stopped.is_set():
            status = requests.post(url, data=b"x", headers=headers, timeout=60).status_code
            answers[place].append(status)

    users = [threading.Thread(target=use, args=(place,)) for place in (0, 1)]
    for user in users:
        user.start()
    try:
        until(lambda: all(202 in place for place in answers), "the key works")
        one.call("DELETE", f"/producers/shop/keys/{key['key_id']}", 204)
        until(lambda: all(place[-20:] == [401] * 20 for place in answers), "the key is refused")
    finally:
        stopped.set()
        for user in users:
            user.join()
    for place in answers:
        assert place == sorted(place), "it never works again"
        assert set(place) == {202, 401}


def test_a_message_that_is_fanned_out_meanwhile_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = ConsumerFactory.create(channel=make_channel(), pull=True)
    publish(consumer.channel, b"1", b"2")
    publish(consumer.channel, b"later", due_at=clock.now() + timedelta(hours=1))
    rest = backlog._accepted

    def fan_out_first(channel_id: int, now: datetime, most: int) -> tuple[int, int]:
        at_once(lambda: fanout.fan_out(10, slot=0))
        return rest(channel_id, now, most)

    monkeypatch.setattr(backlog, "_accepted", fan_out_first)
    counted = backlog.count(consumer.pk, consumer.channel_id, clock.now())
    assert Delivery.objects.exists()
    assert counted == (2, 0, 1)
