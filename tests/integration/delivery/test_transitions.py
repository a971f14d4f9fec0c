"""One place writes the states of deliveries; whoever decides, the same things follow."""

import ast
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F
from prometheus_client import REGISTRY

from channels_app.access.principal import Principal
from channels_app.database import clock, transactions
from channels_app.models import Consumer
from delivery import replay, transitions
from delivery.acks import callbacks
from delivery.core.lifecycle import ARROWS, DeliveryState, Reason, Transition
from delivery.core.ordering import key_number
from delivery.models import Counter, DeadLetter, Delivery
from delivery.processes.wakeups import wakeup_sender
from delivery.queue import cancel, fanout, ordering_keys, release, reschedule
from delivery.transitions import Move
from tests.support import pumping
from tests.support.factories import DeliveryFactory
from tests.support.ordering import end, say, take
from tests.support.pumping import make_channel, make_consumer

pytestmark = pytest.mark.django_db(transaction=True)
ALICE = Principal("user:alice")
NOWHERE = "http://127.0.0.1:9/"
LATER = timedelta(hours=1)
DELETES_OR_REPAIRS = {"counters", "archived", "retention"}
"""Modules of maintenance that change counters, because they delete deliveries or count again."""


def ack(on_timeout: str) -> dict[str, Any]:
    return {"ack": {"mode": "callback", "timeout_ms": 50, "on_timeout": on_timeout}}


def ordered() -> Consumer:
    """Return a consumer with two deliveries of one key."""
    consumer = make_consumer(make_channel(), NOWHERE, ordering=True)
    say(consumer, "A1 A2")
    fanout.fan_out(10, 0)
    return consumer


def head(consumer: Consumer) -> Delivery:
    return Delivery.objects.filter(consumer=consumer).earliest("id")


def test_every_transition_outside_the_table_is_refused() -> None:
    row = DeliveryFactory.create()
    forbidden = [
        (start, end_state, reason)
        for start in DeliveryState
        for end_state in DeliveryState
        for reason in Reason
        if (start, end_state, reason) not in ARROWS
    ]
    assert len(forbidden) > len(ARROWS)
    for start, end_state, reason in forbidden:
        row.state = start.value
        move = Move(row, Transition(end_state, reason, due_in=None, charged=False))
        with pytest.raises(ValueError, match="cannot become"):
            transitions.apply([move], now=clock.now(), slot=0)
    assert Delivery.objects.get().state == "queued"


def skip(consumer: Consumer, now: datetime) -> None:
    number = key_number(consumer.id, "A")
    ordering_keys.skip(number, head(consumer).id, ALICE, now=now)


def resume(consumer: Consumer, now: datetime) -> None:
    number = key_number(consumer.id, "A")
    ordering_keys.pause(number, ALICE, now=now)
    ordering_keys.resume(number, ALICE, now=now)


def cancel_head(consumer: Consumer, now: datetime) -> None:
    cancel.cancel_one(head(consumer).id, ALICE, now=now)


def cancel_message(consumer: Consumer, now: datetime) -> None:
    cancel.cancel_message(head(consumer).message_id, ALICE, now=now)


def replay_head(consumer: Consumer, now: datetime) -> None:
    end(take(consumer, now, 1), "dead", now)
    replay.replay_one(head(consumer).id, ALICE, now=now)


def await_acknowledgement(delivery_id: int, consumer: Consumer) -> None:
    Delivery.objects.filter(id=delivery_id).update(state="awaiting_ack", reason="awaiting_ack")
    Counter.add({(consumer.id, "in_flight"): -1, (consumer.id, "awaiting_ack"): 1}, 0)


def acknowledge(consumer: Consumer, now: datetime) -> None:
    (row,) = take(consumer, now, 1)
    await_acknowledgement(row.id, consumer)
    callbacks.acknowledge(row.id, ok=True, now=now)


def die_with_their_worker(consumer: Consumer, now: datetime) -> None:
    take(consumer, now, 1)
    release.release_owner(1, now=now, slot=0)


def give_back(consumer: Consumer, now: datetime) -> None:
    rows = take(consumer, now, 1)
    release.give_back(rows, owner=1, due_at=now, now=now, slot=0)


def settle_without_a_pump(consumer: Consumer, now: datetime) -> None:
    end(take(consumer, now, 1), "delivered", now)


def move_to_now(consumer: Consumer, now: datetime) -> None:
    reschedule.reschedule(head(consumer).message_id, ALICE, now=now, due_at=now)


@pytest.mark.trap("a replay that starts late or never")
@pytest.mark.parametrize(
    "service",
    [
        skip,
        resume,
        cancel_head,
        cancel_message,
        replay_head,
        acknowledge,
        die_with_their_worker,
        give_back,
        settle_without_a_pump,
        move_to_now,
    ],
)
def test_whoever_makes_a_delivery_due_wakes_its_pump(
    monkeypatch: pytest.MonkeyPatch, service: Callable[[Consumer, datetime], None]
) -> None:
    consumer, now = ordered(), clock.now()
    woken: list[int] = []
    monkeypatch.setattr(wakeup_sender, "due", woken.extend)
    service(consumer, now)
    assert set(woken) == {consumer.id}
    assert Counter.totals() == pumping.recounted()


def test_a_refused_acknowledgement_tells_the_pump_when_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = make_consumer(make_channel(), NOWHERE, retry=[3600], **ack("retry"))
    say(consumer, "A1")
    fanout.fan_out(10, 0)
    now = clock.now()
    (row,) = take(consumer, now, 1)
    await_acknowledgement(row.id, consumer)
    woken: list[int] = []
    monkeypatch.setattr(wakeup_sender, "due", woken.extend)
    callbacks.acknowledge(row.id, ok=False, now=now)
    assert woken == [consumer.id]


def test_a_key_moves_on_after_a_skip_though_its_consumer_is_ordered_no_more() -> None:
    consumer = ordered()
    Consumer.objects.update(ordering=False, version=F("version") + 1)
    skip(consumer, clock.now())
    assert not Delivery.objects.latest("id").is_behind


def test_nobody_is_woken_for_what_is_due_later_or_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer, now = ordered(), clock.now()
    rows = take(consumer, now, 1)
    woken: list[int] = []
    monkeypatch.setattr(wakeup_sender, "due", woken.extend)
    release.give_back(rows, owner=1, due_at=now + transitions.SOON, now=now, slot=0)

    def undo() -> None:
        cancel_head(consumer, now)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        transactions.run(undo)
    assert woken == []


def lose_the_last_lease(consumer: Consumer, now: datetime) -> None:
    take(consumer, now, 1)
    take(consumer, now + LATER, 1)


def miss_the_acknowledgement(consumer: Consumer, now: datetime) -> None:
    (row,) = take(consumer, now, 1)
    await_acknowledgement(row.id, consumer)
    take(consumer, now + LATER, 1)


def release_the_last_lease(consumer: Consumer, now: datetime) -> None:
    take(consumer, now, 1)
    release.release_lapsed(now=now + LATER, slot=0, absent=[consumer.id])


PULL = {"mode": "pull", "url": "", "max_attempts": 1, "lapsed_leases": "charged"}


@pytest.mark.parametrize(
    ("options", "service", "state"),
    [
        ({}, settle_without_a_pump, "delivered"),
        (PULL, lose_the_last_lease, "dead"),
        (PULL, release_the_last_lease, "dead"),
        (ack("proceed"), miss_the_acknowledgement, "delivered"),
        (ack("dead"), miss_the_acknowledgement, "dead"),
        (ack("retry"), acknowledge, "delivered"),
    ],
)
def test_every_end_is_counted_and_every_death_goes_to_the_dead_letter_channel(
    options: dict[str, Any],
    service: Callable[[Consumer, datetime], None],
    state: str,
) -> None:
    options = {"url": NOWHERE, **options}
    consumer = make_consumer(make_channel(), dead_letter_channel=make_channel(), **options)
    say(consumer, "A1")
    fanout.fan_out(10, 0)
    before = {name: counted(name) for name in ("delivered", "dead")}
    service(consumer, clock.now())
    assert Delivery.objects.get().state == state
    assert {name: counted(name) - before[name] for name in before} == {
        name: float(name == state) for name in before
    }
    assert DeadLetter.objects.count() == (state == "dead")
    assert Counter.totals() == pumping.recounted()


def counted(state: str) -> float:
    return REGISTRY.get_sample_value("hookstation_deliveries_total", {"state": state}) or 0.0


def test_no_other_module_writes_states() -> None:
    writers = {
        path.stem
        for path in Path(transitions.__file__).parent.rglob("*.py")
        if "migrations" not in path.parts and _writes_states(path)
    }
    assert writers == {"transitions", *DELETES_OR_REPAIRS}


def _writes_states(path: Path) -> bool:
    """Whether a module updates the counters, which every change of a state does."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in {"add", "adding"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "Counter"
        for node in ast.walk(ast.parse(path.read_text()))
    )
