"""A confirmed change holds: no delivery starts with the configuration before it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import transaction
from standardwebhooks import Webhook

from channels_app.change_marker import change_marker
from channels_app.database import clock
from channels_app.models import ConfigVersion, Consumer
from channels_app.registry import cache as config_cache_module
from channels_app.registry import channels, consumers, secrets
from delivery.core.ordering import key_number
from delivery.models import Attempt, Delivery, PumpSlot
from delivery.processes import registration
from delivery.processes.wakeups import wakeup_sender
from delivery.pump import confirmation, membership
from delivery.pump.pump import Pump
from delivery.queue import ordering_keys
from tests.support import pumping
from tests.support.principals import acting
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)
ALICE = acting("user:alice", "a test")
NOWHERE = "http://127.0.0.1:9/"
Change = Callable[[Consumer, str], object]


def pause(consumer: Consumer, _: str) -> object:
    slug, client_id = consumer.channel.slug, consumer.client_id
    return consumers.pause(slug, client_id, principal=acting("user:alice"))


def retire(consumer: Consumer, _: str) -> object:
    slug, client_id = consumer.channel.slug, consumer.client_id
    return consumers.retire(slug, client_id, principal=acting("user:alice"))


def pause_channel(consumer: Consumer, _: str) -> object:
    return channels.put(consumer.channel.slug, {"paused": True}, principal=acting("user:alice"))


def pause_key(consumer: Consumer, _: str) -> object:
    return ordering_keys.pause(key_number(consumer.id, "A"), ALICE, now=clock.now())


def move(consumer: Consumer, url: str) -> object:
    slug, client_id = consumer.channel.slug, consumer.client_id
    return consumers.patch(slug, client_id, {"url": url}, principal=acting("user:alice"))


@pytest.fixture
def pump(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pump]:
    """A pump that learns of each change while the caller waits for confirmation."""
    with pumping.pumping() as made:
        pump_until(made, lambda: not registration.behind(ConfigVersion.current()))
        monkeypatch.setattr(wakeup_sender, "changed", made._beat)
        yield made


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pump]:
    """A stopped pump on another host, and a short fence."""
    monkeypatch.setattr(confirmation, "FENCE_S", 0.1)
    monkeypatch.setattr(membership, "FENCE_S", 0.1)
    monkeypatch.setattr(config_cache_module, "CHECK_S", 60.0)
    monkeypatch.setattr(change_marker, "mark", lambda: (0, 0))
    with pumping.pumping() as made:
        yield made


def taken(pump: Pump, consumer: Consumer, count: int) -> None:
    """Let the pump claim deliveries, of which none has started."""
    publish(consumer.channel, *[b"x"] * count, ordering_key="A" if consumer.ordering else "")
    pump._beat()
    pump.next_poll = 0.0
    pump._scan(clock.now())
    assert len(pump.claimed) == (1 if consumer.ordering else count)


def go_on(pump: Pump) -> None:
    """Continue where the pump stopped, possibly in the middle of a round."""
    pump._send_claimed()
    for _ in range(3):
        pump._wait(0.02)


@pytest.mark.trap("a pause confirmed too early")
@pytest.mark.parametrize("change", [pause, retire, pause_channel, pause_key])
@pytest.mark.parametrize("hears", [True, False])
def test_no_request_begins_after_the_change_is_confirmed(
    receiver: Receiver, request: pytest.FixtureRequest, change: Change, hears: bool
) -> None:
    pump: Pump = request.getfixturevalue("pump" if hears else "frozen")
    consumer = make_consumer(make_channel(), receiver.url("/ok"), ordering=change is pause_key)
    taken(pump, consumer, 5)
    change(consumer, "")
    go_on(pump)
    for _ in range(3):
        pump.round()
    assert receiver.requests() == []
    assert not pump.open
    assert not pump.claimed
    assert {(row.state, row.failure_count) for row in Delivery.objects.all()} == {("queued", 0)}


@pytest.mark.trap("a pause confirmed too early")
@pytest.mark.parametrize("hears", [True, False])
def test_a_new_url_and_secret_apply_to_every_new_request(
    receiver: Receiver, request: pytest.FixtureRequest, hears: bool
) -> None:
    pump: Pump = request.getfixturevalue("pump" if hears else "frozen")
    consumer = make_consumer(make_channel(), receiver.url("/old"))
    taken(pump, consumer, 5)
    move(consumer, receiver.url("/new"))
    made = secrets.rotate(
        consumer.channel.slug, consumer.client_id, {"overlap_s": 0}, principal=acting("user:alice")
    )
    go_on(pump)
    pump_until(pump, all_finished)
    requests = receiver.requests()
    assert [one.path for one in requests] == ["/new"] * 5
    for one in requests:
        headers = {name.lower(): value for name, value in one.headers}
        Webhook(made.secrets[0]).verify(one.body, headers, json_parse=False)


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a port on which connections start but are never established."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as listener:
        place = listener.getsockname()
        with ExitStack() as fillers:
            for _ in range(3):
                filler = fillers.enter_context(closing(socket.socket()))
                filler.setblocking(False)
                filler.connect_ex(place)
            yield f"http://127.0.0.1:{place[1]}/"


@pytest.mark.parametrize("change", [pause, move])
def test_a_request_waiting_for_a_connection_has_not_begun(
    pump: Pump, receiver: Receiver, deaf: str, change: Change
) -> None:
    consumer = make_consumer(make_channel(), deaf)
    publish(consumer.channel, b"x")
    pump_until(pump, lambda: bool(pump.open))
    change(consumer, receiver.url("/new"))
    assert not pump.open
    pump._record()
    assert [row.outcome for row in Attempt.objects.all()] == ["interrupted"]
    if change is move:
        pump_until(pump, all_finished)
        assert [one.path for one in receiver.requests()] == ["/new"]


def test_a_request_in_flight_completes(pump: Pump, receiver: Receiver) -> None:
    consumer = make_consumer(make_channel(), receiver.url("/slow"))
    is_paused = threading.Event()
    receiver.script("/slow", [Reply(until=is_paused)])
    publish(consumer.channel, b"x")
    pump_until(pump, lambda: bool(receiver.requests()))
    pause(consumer, "")
    is_paused.set()
    pump_until(pump, all_finished)
    assert Delivery.objects.get().state == "delivered"


@pytest.mark.trap("a pause confirmed too early")
def test_a_dead_or_frozen_pump_delays_a_change_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    clocks = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    monkeypatch.setattr(confirmation, "time", clocks)

    def waited_s(work: Callable[[], object]) -> float:
        waits.clear()
        work()
        return sum(waits)

    fence_s = pytest.approx(confirmation.FENCE_S)
    channel = make_channel()
    consumer = make_consumer(channel, NOWHERE)
    assert waited_s(lambda: pause(consumer, "")) == 0, "there is no pump"
    held = registration.acquire("frozen", "pump", 1, "127.0.0.1 9")
    assert held is not None
    assert waited_s(lambda: make_consumer(channel, NOWHERE)) == 0, "no pump knows it"
    assert waited_s(lambda: move(consumer, f"{NOWHERE}new")) == fence_s
    assert waited_s(lambda: pause_channel(consumer, "")) == 0, "nobody waits twice"
    assert registration.beat(held, 0)
    assert waited_s(lambda: move(consumer, NOWHERE)) == fence_s
    PumpSlot.objects.update(
        heartbeat_at=clock.now() - timedelta(seconds=registration.STALE_AFTER_S + 1.0)
    )
    assert waited_s(lambda: retire(consumer, "")) == 0, "it is dead"


def test_a_transaction_with_many_changes_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = make_channel()
    consumers = [make_consumer(channel, NOWHERE) for _ in range(3)]
    waits: list[int] = []
    monkeypatch.setattr(confirmation, "wait", lambda: waits.append(1))
    with transaction.atomic():
        for consumer in consumers:
            pause(consumer, "")
    assert waits == [1]


def join(first: Pump, second: Pump) -> None:
    """Run rounds of both pumps until the second one has had time to take over its consumers."""
    rounds = 10
    while rounds:
        for pump in (first, second):
            pump.next_poll = 0.0
            with pumping.brisk(pump):
                pump.round()
        rounds -= bool(second.assignment.queues) and second.membership.owns()
    assert 0 < len(second.assignment.queues) < 8


@pytest.mark.trap("a limit that applies twice")
def test_a_joining_pump_respects_every_max_in_flight(receiver: Receiver) -> None:
    limits = {f"/{number}": 1 + 2 * (number % 2) for number in range(8)}
    for path, most in limits.items():
        receiver.script(path, [Reply(hang=True)])
        channel = make_channel()
        make_consumer(channel, receiver.url(path), max_in_flight=most)
        publish(channel, *[b"x"] * (most + 2))
    with pumping.pumping() as first:
        pump_until(first, lambda: len(receiver.requests()) == sum(limits.values()))
        with pumping.pumping() as second:
            join(first, second)
            assert {path: len(receiver.requests(path)) for path in limits} == limits


@pytest.mark.trap("a limit that applies twice")
def test_a_joining_pump_respects_the_current_rate(receiver: Receiver) -> None:
    with pumping.pumping() as first:
        pumping.pump_rounds(first, 1)
        for number in range(8):
            channel, limits = make_channel(), {"rate_per_second": 0.001, "rate_burst": 3}
            make_consumer(channel, receiver.url(f"/{number}"), **limits)
            publish(channel, *[b"x"] * 5)
        pump_until(first, lambda: len(receiver.requests()) >= 8)
        sent = len(receiver.requests())
        with pumping.pumping() as second:
            join(first, second)
            assert len(receiver.requests()) == sent
