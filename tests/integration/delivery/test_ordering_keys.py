"""Ordering keys: the next delivery of a key goes when the one before it has ended (S3)."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from channels_app.core import times
from channels_app.core.errors import Conflict, NotFound
from channels_app.database import clock
from channels_app.models import Consumer, Message
from channels_app.registry import consumers
from delivery import replay
from delivery.core.ordering import BEHIND, key_number
from delivery.maintenance import retention
from delivery.models import Counter, Delivery, OrderingKey, OrderingWaiter
from delivery.ordering import key_queue
from delivery.queue import cancel, claim, fanout, ordering_keys, release, reschedule
from delivery.queue.claim import ClaimRequest
from tests.support import pumping
from tests.support.ordering import LEASE_MS, check, end, key_number_of, say, take, words
from tests.support.principals import acting
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply
from tests.support.threads import at_once, in_thread, is_lock_awaited
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"
ALICE = acting("user:alice", "a test")


@pytest.fixture
def consumer() -> Consumer:
    return make_consumer(make_channel(), NOWHERE, ordering=True)


@pytest.fixture
def now() -> datetime:
    # Later than anything that a test publishes, even on a slow machine.
    return times.floor_ms(clock.now()) + timedelta(minutes=5)


@pytest.fixture(autouse=True)
def books() -> Iterator[None]:
    yield
    check()


def fan_out() -> None:
    while fanout.fan_out(100, slot=0).message_count:
        pass


def deliver_all(consumer: Consumer, now: datetime) -> list[str]:
    """Return what was claimed in each round until nothing was left."""
    rounds = []
    while rows := take(consumer, now):
        rounds.append(words(rows))
        assert end(rows, "delivered", now) == len(rows)
        check()
    return rounds


def test_heads_without_followers_end_their_keys_without_a_query(
    consumer: Consumer, now: datetime
) -> None:
    say(consumer, "A1 B1 B2 C1")
    fan_out()
    a, b, c = take(consumer, now)
    with CaptureQueriesContext(connection) as alone:
        assert end([a, c], "delivered", now) == 2
    with CaptureQueriesContext(connection) as beside:
        assert end([b], "delivered", now) == 1

    looks = [
        sum("SELECT id, consumer_id, head_id" in it["sql"] for it in done.captured_queries)
        for done in (alone, beside)
    ]
    assert looks == [0, 1]
    assert deliver_all(consumer, now) == ["B2"]
    assert not OrderingKey.objects.exists()


@pytest.mark.seed("S3-01", "S3-09", "S3-24", "S3-26", "S3-33", "S3-34")
def test_one_delivery_per_key_at_a_time_and_a_key_ends_with_its_last(
    consumer: Consumer, now: datetime
) -> None:
    say(consumer, "A1 A2 B1 A3 B2 C1")
    fan_out()
    assert OrderingKey.objects.count() == 3
    assert deliver_all(consumer, now) == ["A1 B1 C1", "A2 B2", "A3"]
    assert not OrderingKey.objects.exists()
    assert not OrderingWaiter.objects.exists()


@pytest.mark.seed("S3-01", "S3-02", "S3-03", "S3-29")
@pytest.mark.usefixtures("brief_pauses")
def test_the_example_of_the_requirement_holds_in_a_pump_with_failures(receiver: Receiver) -> None:
    consumer = make_consumer(
        make_channel(), receiver.url("/flaky"), ordering=True, retry=[0.01], max_attempts=10
    )
    replies = [Reply(500), Reply(200), Reply(503), Reply(200), Reply(200), Reply(500)]
    receiver.script("/flaky", [*replies, *replies, Reply(200)])
    with pumping.pumping() as pump:
        say(consumer, "B2 C4 C5 A5 A6 B3 A7")
        pump_until(pump, all_finished, seconds=60)
    heard: dict[str, list[str]] = defaultdict(list)
    for request in receiver.requests():
        heard[request.body.decode()[0]].append(request.body.decode()[1])
    assert len(receiver.requests()) > 7, "some were sent again"
    for numbers in heard.values():
        assert numbers == sorted(numbers), "the same again, or the next"
    assert {key: set(numbers) for key, numbers in heard.items()} == {
        "A": set("567"),
        "B": set("23"),
        "C": set("45"),
    }
    assert not OrderingKey.objects.exists()


@pytest.mark.seed("S3-43")
def test_without_key_or_ordering_there_is_no_key_row(consumer: Consumer, now: datetime) -> None:
    other = make_consumer(consumer.channel, NOWHERE)
    publish(consumer.channel, b"1", b"2")
    say(consumer, "A1 A2")
    fan_out()
    assert len(take(other, now)) == 4, "it asks for no order"
    assert len(take(consumer, now)) == 3
    assert OrderingKey.objects.count() == 1


@pytest.mark.seed("S3-14")
def test_followers_wait_for_the_retries_of_the_head(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2")
    fan_out()
    end(take(consumer, now), "retry", now)
    assert not take(consumer, now + timedelta(seconds=59))
    later = now + timedelta(seconds=61)
    assert deliver_all(consumer, later) == ["A1", "A2"]


def test_followers_wait_for_an_expired_lease(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2")
    fan_out()
    first = take(consumer, now)
    later = now + timedelta(minutes=1)
    again = take(consumer, later)
    assert words(again) == "A1"
    assert end(first, "delivered", later) == 0, "its lease had lapsed"
    assert not take(consumer, later)
    assert end(again, "delivered", later) == 1
    assert deliver_all(consumer, later) == ["A2"]


def test_followers_wait_while_a_dead_pump_is_reaped(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2")
    fan_out()
    take(consumer, now)
    release.release_owner(1, now=now, slot=0)
    assert deliver_all(consumer, now) == ["A1", "A2"]


@pytest.mark.parametrize("how", ["dead", "expired"])
def test_a_dead_head_releases_the_next_delivery(
    consumer: Consumer, now: datetime, how: str
) -> None:
    say(consumer, "A1 A2")
    fan_out()
    end(take(consumer, now), how, now)
    assert deliver_all(consumer, now) == ["A2"]


@pytest.mark.seed("S3-14")
@pytest.mark.parametrize(
    ("what", "rest"), [("replay", ["A1", "A2"]), ("skip", ["A2"]), ("setting", ["A2"])]
)
def test_a_dead_head_blocks_its_key_if_configured_until_somebody_decides(
    now: datetime, what: str, rest: list[str]
) -> None:
    consumer = make_consumer(make_channel(), NOWHERE, ordering=True, head_of_line="block")
    say(consumer, "A1 A2 B1")
    fan_out()
    end(take(consumer, now), "dead", now)
    assert not take(consumer, now), "B is empty, A stands still"
    key_row = key_number_of(consumer, "A")
    head_id = key_row.head_id or 0
    assert key_row.blocked_at == now
    assert list(ordering_keys.repair(now)) == []
    if what == "replay":
        replay.replay_one(head_id, ALICE, now=now)
    elif what == "skip":
        assert ordering_keys.skip(key_row.id, head_id, ALICE, now=now) == {consumer.id: now}
    else:
        consumer.head_of_line = "skip"
        consumer.save()
        assert sum(ordering_keys.repair(now)) == 2
    check()
    assert deliver_all(consumer, now) == rest


@pytest.mark.seed("S3-14")
def test_a_dead_head_without_followers_blocks_later_deliveries(now: datetime) -> None:
    consumer = make_consumer(make_channel(), NOWHERE, ordering=True, head_of_line="block")
    say(consumer, "A1 B1")
    fan_out()
    a, b = take(consumer, now)
    assert (end([a], "dead", now), end([b], "delivered", now)) == (1, 1)
    say(consumer, "A2 B2")
    fan_out()
    assert words(take(consumer, now)) == "B2"
    assert key_number_of(consumer, "A").blocked_at == now


def test_a_replayed_delivery_is_last_of_its_key(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2 A3")
    fan_out()
    dead = take(consumer, now)
    end(dead, "dead", now)
    replay.replay_one(dead[0].id, ALICE, now=now)
    check()
    assert deliver_all(consumer, now) == ["A2", "A3", "A1"]


def test_a_replay_of_many_keeps_the_order_of_each_key(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 B1 A2 A3 B2")
    fan_out()
    deliver_all(consumer, now)
    wanted = replay.parse({"channel": consumer.channel.slug, "states": ["delivered"]})
    job = replay.create(wanted, replay.consumers_of(wanted, ALICE), ALICE, now=now)
    replay.run_slice(job, now, 1000, 0)
    check()
    assert deliver_all(consumer, now) == ["A1 B1", "A2 B2", "A3"]


def test_a_backfill_keeps_the_order_of_each_key(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 B1 A2")
    fan_out()
    late = make_consumer(consumer.channel, NOWHERE, ordering=True)
    wanted = replay.parse({}, kind="missing").within(consumer.channel.slug, late.client_id)
    job = replay.create(wanted, replay.consumers_of(wanted, ALICE), ALICE, now=now)
    replay.run_slice(job, now, 1000, 0)
    check()
    assert deliver_all(late, now) == ["A1 B1", "A2"]


@pytest.mark.parametrize(("which", "left"), [("A1", ["A2", "A3"]), ("A2", ["A1", "A3"])])
def test_a_cancelled_delivery_does_not_block_its_key(
    consumer: Consumer, now: datetime, which: str, left: list[str]
) -> None:
    say(consumer, "A1 A2 A3")
    fan_out()
    row = Delivery.objects.order_by("message_id")[int(which[1]) - 1]
    cancel.cancel_one(row.id, ALICE, now=now)
    check()
    assert deliver_all(consumer, now) == left


def test_a_cancelled_message_does_not_block_its_key(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2")
    fan_out()
    first = Message.objects.order_by("id").first()
    assert first is not None
    cancel.cancel_message(first.id, ALICE, now=now)
    assert deliver_all(consumer, now) == ["A2"]


def test_deliveries_that_expired_while_waiting_are_skipped(
    consumer: Consumer, now: datetime
) -> None:
    say(consumer, "A1")
    say(consumer, "A2 A3", expires_at=now)
    say(consumer, "A4")
    fan_out()
    end(take(consumer, now - timedelta(seconds=1)), "delivered", now)
    assert not take(consumer, now)
    assert deliver_all(consumer, now) == ["A4"]


def test_one_claim_cancels_a_batch_of_expired_deliveries(
    consumer: Consumer, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expired heads end, and as many expired messages behind them as fit the limit."""
    monkeypatch.setattr(key_queue, "MAX_ROWS", 6)
    say(consumer, "A1 A2 A3 B1 B2 C1", expires_at=now)
    say(consumer, "A4 B3")
    say(consumer, "A5 B4 B5", expires_at=now)
    fan_out()
    made = claim.claim([ClaimRequest(consumer.id, 100, LEASE_MS, owner=1)], now=now, slot=0)
    assert (made.expired_count, made.rows) == (7, [])
    check()
    queued = Delivery.objects.filter(state="queued")
    assert sorted(queued.values_list("event_type", flat=True)) == ["A4", "A5", "B3", "B5"]
    assert deliver_all(consumer, now) == ["A4 B3"]
    assert not OrderingKey.objects.exists()


def test_a_scheduled_head_blocks_its_key(consumer: Consumer, now: datetime) -> None:
    at = now + timedelta(hours=1)
    say(consumer, "A1", due_at=at)
    say(consumer, "A2")
    fan_out()
    assert not take(consumer, now)
    assert deliver_all(consumer, at) == ["A1", "A2"]


def test_a_follower_keeps_its_own_due_time(consumer: Consumer, now: datetime) -> None:
    at = now + timedelta(hours=1)
    say(consumer, "A1")
    say(consumer, "A2", due_at=at)
    fan_out()
    assert deliver_all(consumer, now) == ["A1"]
    assert Delivery.objects.get(state="queued").due_at == at
    assert deliver_all(consumer, at) == ["A2"]


def test_a_follower_can_be_moved_and_keeps_its_position(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2 A3")
    fan_out()
    second = Delivery.objects.order_by("message_id")[1]
    at = now + timedelta(hours=1)
    reschedule.reschedule(second.message_id, ALICE, now=now, due_at=at, priority=9)
    check()
    second.refresh_from_db()
    assert (second.due_at, second.priority, second.next_at) == (BEHIND, 9, None)
    assert deliver_all(consumer, now) == ["A1"]
    assert deliver_all(consumer, at) == ["A2", "A3"]


@pytest.mark.mariadb
def test_a_follower_moved_while_the_head_ends_keeps_its_new_due_time(
    consumer: Consumer, now: datetime
) -> None:
    """The move is not yet committed when the next message of the key is looked up."""
    say(consumer, "A1")
    say(consumer, "A2", due_at=now + timedelta(hours=1))
    fan_out()
    head = take(consumer, now)
    second = Delivery.objects.get(id=OrderingWaiter.objects.get().delivery_id)
    moved = threading.Event()

    def move() -> None:
        with transaction.atomic():
            reschedule.reschedule(second.message_id, ALICE, now=now, due_at=now)
            moved.set()
            until(is_lock_awaited, "settling the head waits for this transaction")

    mover = in_thread(move)
    assert moved.wait(60)
    assert end(head, "delivered", now) == 1
    mover.join(60)
    second.refresh_from_db()
    assert second.due_at == now
    assert deliver_all(consumer, now) == ["A2"]


def test_a_paused_consumer_keeps_its_keys(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2")
    fan_out()
    slug = consumer.channel.slug
    consumers.pause(slug, consumer.client_id, principal=acting("user:alice"))
    assert list(ordering_keys.repair(now)) == []
    consumers.resume(slug, consumer.client_id, principal=acting("user:alice"))
    assert deliver_all(consumer, now) == ["A1", "A2"]


def test_keys_of_a_retired_consumer_are_deleted_with_its_deliveries(
    consumer: Consumer, now: datetime
) -> None:
    say(consumer, "A1 A2 A3")
    fan_out()
    consumers.retire(consumer.channel.slug, consumer.client_id, principal=acting("user:alice"))
    assert cancel.cancel_retired(now, 0, 100) == 3
    assert sum(ordering_keys.repair(now)) == 1
    assert not OrderingKey.objects.exists()
    assert Delivery.objects.filter(state="cancelled").count() == 3


def test_turning_ordering_off_releases_all_followers(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2 A3 B1")
    fan_out()
    consumer.ordering = False
    consumer.save()
    say(consumer, "A4")
    fan_out()
    assert words(take(consumer, now, 1)) == "A1"
    assert sum(ordering_keys.repair(now)) == 2
    assert not OrderingKey.objects.exists()
    assert words(take(consumer, now)) == "A2 A3 A4 B1"


def test_turning_ordering_on_orders_later_deliveries(now: datetime) -> None:
    consumer = make_consumer(make_channel(), NOWHERE)
    say(consumer, "A1 A2")
    fan_out()
    consumer.ordering = True
    consumer.save()
    say(consumer, "A3 A4")
    fan_out()
    rows = take(consumer, now)
    assert words(rows) == "A1 A2 A3"
    end(rows, "delivered", now)
    assert deliver_all(consumer, now) == ["A4"]


def test_a_delivery_from_before_ordering_ends_no_key(now: datetime) -> None:
    consumer = make_consumer(make_channel(), NOWHERE)
    say(consumer, "A1")
    fan_out()
    consumer.ordering = True
    consumer.save()
    say(consumer, "A2")
    fan_out()
    first, second = take(consumer, now)
    end([first], "delivered", now)
    say(consumer, "A3")
    fan_out()
    assert not take(consumer, now), "A2 is in somebody's hands"
    end([second], "delivered", now)
    assert deliver_all(consumer, now) == ["A3"]


def test_a_sweep_continues_keys_without_a_head(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2 B1")
    fan_out()
    Delivery.objects.filter(id=key_number_of(consumer, "A").head_id or 0).delete()
    Delivery.objects.filter(id=key_number_of(consumer, "B").head_id or 0).update(
        state="delivered", due_at=None, finished_at=now
    )
    Counter.add({(consumer.id, "queued"): -2, (consumer.id, "delivered"): 1}, 0)
    Counter.add({(consumer.id, "made"): -1}, 0)
    assert not take(consumer, now)
    assert sum(ordering_keys.repair(now)) == 2
    assert Delivery.objects.get(state="queued").id == key_number_of(consumer, "A").head_id
    assert not OrderingKey.objects.filter(id=key_number(consumer.id, "B")).exists()
    deliver_all(consumer, now)


def test_retention_keeps_waiting_deliveries(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2")
    fan_out()
    end(take(consumer, now), "delivered", now)
    much_later = now + timedelta(days=3650)
    list(retention.prune(much_later, 0))
    assert deliver_all(consumer, now) == ["A2"]


def test_pause_resume_and_skip_a_key(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2 A3 B1")
    fan_out()
    key = key_number(consumer.id, "A")
    rows = take(consumer, now)
    assert words(rows) == "A1 B1"
    assert ordering_keys.pause(key, ALICE, now=now).paused_at == now
    ordering_keys.pause(key, ALICE, now=now)
    with pytest.raises(Conflict):
        ordering_keys.skip(key, rows[0].id, ALICE, now=now)
    end(rows, "delivered", now)
    check()
    say(consumer, "A4")
    fan_out()
    assert not take(consumer, now)
    assert list(ordering_keys.repair(now)) == []
    assert ordering_keys.resume(key, ALICE, now=now) == {consumer.id: now}
    assert ordering_keys.resume(key, ALICE, now=now) == {}
    check()
    with pytest.raises(Conflict):
        ordering_keys.skip(key, rows[0].id, ALICE, now=now)
    second = key_number_of(consumer, "A").head_id or 0
    assert ordering_keys.skip(key, second, ALICE, now=now) == {consumer.id: now}
    assert deliver_all(consumer, now) == ["A3", "A4"]
    with pytest.raises(NotFound):
        ordering_keys.pause(key, ALICE, now=now)


def test_an_empty_key_can_be_paused(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1")
    fan_out()
    key = key_number(consumer.id, "A")
    rows = take(consumer, now)
    ordering_keys.pause(key, ALICE, now=now)
    end(rows, "delivered", now)
    say(consumer, "A2")
    fan_out()
    assert not take(consumer, now)
    ordering_keys.resume(key, ALICE, now=now)
    assert deliver_all(consumer, now) == ["A2"]


def test_a_queued_head_of_a_paused_key_waits(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1 A2 B1")
    fan_out()
    key = key_number(consumer.id, "A")
    ordering_keys.pause(key, ALICE, now=now)
    check()
    assert words(take(consumer, now)) == "B1"
    assert list(ordering_keys.repair(now)) == []
    assert ordering_keys.resume(key, ALICE, now=now) == {consumer.id: now}
    check()
    assert deliver_all(consumer, now) == ["A1", "A2"]


@pytest.mark.parametrize("how", ["retry", "nothing"])
def test_a_paused_key_is_not_retried(consumer: Consumer, now: datetime, how: str) -> None:
    say(consumer, "A1 A2")
    fan_out()
    key = key_number(consumer.id, "A")
    rows = take(consumer, now)
    ordering_keys.pause(key, ALICE, now=now)
    if how == "retry":
        end(rows, "retry", now)
    later = now + timedelta(minutes=2)  # the retry is due, or the lease has expired
    assert not take(consumer, later)
    check()
    assert set(Delivery.objects.values_list("state", "due_at")) == {("queued", BEHIND)}
    ordering_keys.resume(key, ALICE, now=later)
    check()
    (first,) = take(consumer, later)
    assert (first.event_type, first.attempt) == ("A1", 2)
    end([first], "delivered", later)
    assert deliver_all(consumer, later) == ["A2"]
    assert Counter.totals() == pumping.recounted()


def beside_a_held_beginning(other: Callable[[], None]) -> None:
    """Run it on its own connection while another transaction fans out the first two messages."""
    with transaction.atomic():
        assert fanout.fan_out(2, slot=0).message_count == 2
        in_thread(other).join()


@pytest.mark.mariadb
@pytest.mark.seed("S3-02", "S2-65")
@pytest.mark.parametrize("told_of", [0, 1, 3])
def test_concurrent_fan_outs_keep_the_order_of_acceptance(
    consumer: Consumer, now: datetime, told_of: int
) -> None:
    """A fan-out skips later messages of a key whose first message another one holds."""
    say(consumer, "A1 B1 A2 C1 A3")
    notified = Message.objects.order_by("-id").values_list("id", flat=True)[:told_of]
    made: list[int] = []

    def other() -> None:
        made.append(fanout.fan_out(100, slot=1, notified=notified).message_count)

    beside_a_held_beginning(other)
    assert made == [1], "C1 alone"
    fan_out()
    assert deliver_all(consumer, now) == ["A1 B1 C1", "A2", "A3"]


@pytest.mark.mariadb
def test_fan_out_behind_a_crowded_key_is_bounded(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "MAX_PASSED", 4)
    say(consumer, " ".join(f"A{number}" for number in range(12)))
    made: list[fanout.FanoutResult] = []
    asked: list[str] = []

    def note(run: Callable[..., Any], sql: str, *rest: Any) -> Any:
        asked.append(sql)
        return run(sql, *rest)

    def other() -> None:
        with connection.execute_wrapper(note):
            made.append(fanout.fan_out(2, slot=1))

    beside_a_held_beginning(other)
    assert made == [fanout.FanoutResult(more=True)]
    assert sum("ORDER BY id LIMIT" in sql for sql in asked) == 3


@pytest.mark.mariadb
def test_joining_a_key_waits_for_the_removal_of_its_head(consumer: Consumer, now: datetime) -> None:
    """Otherwise the key's row would be deleted while a delivery waits behind it forever."""
    say(consumer, "A1")
    fan_out()
    rows = take(consumer, now)
    say(consumer, "A2")
    done = threading.Event()

    def other() -> None:
        fanout.fan_out(100, slot=1)
        done.set()

    with transaction.atomic():
        end(rows, "delivered", now)
        thread = in_thread(other)
        until(is_lock_awaited, "the fan-out waits for this transaction")
        assert not done.is_set()
    thread.join()
    assert deliver_all(consumer, now) == ["A2"]


@pytest.mark.mariadb
def test_concurrent_fan_outs_create_a_key_once(consumer: Consumer, now: datetime) -> None:
    say(consumer, "A1")
    say(consumer, "A2")

    def fan(slot: int) -> None:
        while fanout.fan_out(1, slot=slot).more:
            pass

    at_once(partial(fan, 0), partial(fan, 1))
    fan_out()
    assert deliver_all(consumer, now) == ["A1", "A2"]


@pytest.mark.seed("S3-07")
def test_a_claim_does_not_read_followers(consumer: Consumer, now: datetime) -> None:
    publish(consumer.channel, *[b"x"] * 150, ordering_key="A", event_type="A1")
    say(consumer, "B1")
    fan_out()
    assert words(take(consumer, now)) == "A1 B1"
