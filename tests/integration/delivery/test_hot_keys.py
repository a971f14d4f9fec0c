"""Hot keys: an overloaded key is reported once by name, and other keys go on (S3-32)."""

import dataclasses
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from channels_app.access.principal import Principal
from channels_app.database import clock
from channels_app.models import Consumer
from channels_app.registry import consumers
from delivery.conf import conf
from delivery.core.health_status import NotificationKind
from delivery.core.notifications import NotificationContent, text
from delivery.models import Delivery, HealthStatus, Notification, OrderingKey
from delivery.ordering import hot_keys
from delivery.queue import fanout, ordering_keys
from tests.support import console
from tests.support.factories import TeamFactory
from tests.support.ordering import end, key_number_of, say, take, words
from tests.support.principals import acting
from tests.support.pumping import make_channel, make_consumer
from tests.support.threads import at_once

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"
MINUTE = timedelta(minutes=1)
Allow = Callable[..., None]


@pytest.fixture(autouse=True)
def allow(monkeypatch: pytest.MonkeyPatch) -> Allow:
    """Changes the two limits; by default two may wait, for any time."""

    def change(waiting: int = 2, after: timedelta = timedelta()) -> None:
        after_s = int(after.total_seconds())
        new = dataclasses.replace(conf(), hot_key_waiting=waiting, hot_key_after_s=after_s)
        monkeypatch.setattr(hot_keys, "conf", lambda: new)

    change()
    return change


@pytest.fixture
def consumer() -> Consumer:
    return make_consumer(make_channel(), NOWHERE, ordering=True, team=TeamFactory.create())


@pytest.fixture
def now() -> datetime:
    return clock.now() + timedelta(seconds=5)


def crowd(consumer: Consumer, text: str) -> None:
    say(consumer, text)
    while fanout.fan_out(100, slot=0).message_count:
        pass


def look(now: datetime) -> list[str]:
    """Return the reasons of the notifications that one more check creates."""
    before = Notification.objects.count()
    assert sum(hot_keys.scan(now)) == Notification.objects.count() - before
    return list(Notification.objects.order_by("id").values_list("reason", flat=True)[before:])


def drain(consumer: Consumer, now: datetime) -> None:
    while rows := take(consumer, now):
        end(rows, "delivered", now)


@pytest.mark.seed("S3-32")
def test_a_hot_key_is_reported_by_name(consumer: Consumer, now: datetime) -> None:
    others = ["B1", "C1", "D1", "E1"]
    crowd(consumer, " ".join(f"A{n} {other}" for n, other in enumerate(others)))
    rows = take(consumer, now)
    assert words(rows) == " ".join(["A0", *others]), "the others wait for nothing"
    end([row for row in rows if row.ordering_key != "A"], "delivered", now)
    (told,) = look(now)
    assert told.startswith(
        "3 deliveries wait behind the head of the key A, which has not changed since "
    )
    notice = Notification.objects.get()
    assert notice.kind == "hot_key"
    assert notice.mail_due_at
    (found,) = hot_keys.backlogs()
    assert (found.key, found.waiting, found.count) == ("A", 3, 1)
    assert Delivery.objects.filter(state="queued").count() == 3, "nothing is slowed down"
    mail = text(
        NotificationContent(NotificationKind.HOT_KEY, now, "rooms", "sender", "shop", told, "")
    )
    assert "Your webhook sender on the channel rooms has a hot key" in mail
    assert told in mail
    assert "over several keys" in mail


def test_a_hot_key_is_reported_once_on_the_transition(consumer: Consumer, now: datetime) -> None:
    assert look(now) == []
    assert not HealthStatus.objects.exists()
    crowd(consumer, "A0 A0")
    assert look(now) == [], "one waits, two would be hot"
    crowd(consumer, "A0 B0 B0 B0 B0")
    (told,) = look(now)
    assert "3 deliveries wait behind the head of the key B" in told
    assert told.endswith("; 1 more keys are hot.")
    for minute in (1, 59, 61, 89):
        assert look(now + minute * MINUTE) == []
    crowd(consumer, "C0 C0 C0")
    assert look(now + 90 * MINUTE) == [], "its owners know of hot keys"
    drain(consumer, now + 91 * MINUTE)
    assert look(now + 91 * MINUTE) == []
    assert hot_keys.backlogs() == []
    crowd(consumer, "A0 A0 A0")
    assert len(look(now + 92 * MINUTE)) == 1


def test_a_fluctuating_key_is_reported_once_an_hour(consumer: Consumer, now: datetime) -> None:
    told = 0
    for minute in range(0, 180, 20):
        crowd(consumer, "A0 A0 A0")
        told += len(look(now + minute * MINUTE))
        drain(consumer, now + minute * MINUTE)
        told += len(look(now + (minute + 5) * MINUTE))
    assert told == 3


def test_a_blocked_head_makes_its_key_hot(consumer: Consumer, now: datetime, allow: Allow) -> None:
    allow(waiting=0, after=30 * MINUTE)
    crowd(consumer, "A0 A1 B0")
    end(take(consumer, now), "retry", now)
    assert look(now + 29 * MINUTE) == []
    (told,) = look(now + 31 * MINUTE)
    assert told.startswith("1 delivery waits behind the head of the key A"), "behind B nobody waits"
    allow(waiting=0)
    assert look(now + 32 * MINUTE) == []
    assert hot_keys.backlogs() == []


def test_a_deliberately_waiting_key_is_not_hot(
    consumer: Consumer, now: datetime, allow: Allow
) -> None:
    allow(waiting=0, after=30 * MINUTE)
    say(consumer, "A0", due_at=now + timedelta(days=1))
    crowd(consumer, "A1")
    assert look(now + 40 * MINUTE) == [], "a producer wants the head to go tomorrow"
    allow(waiting=1)
    ordering_keys.pause(key_number_of(consumer, "A").id, Principal("user:olga"), now=now)
    assert look(now) == []
    ordering_keys.resume(key_number_of(consumer, "A").id, Principal("user:olga"), now=now)
    consumers.pause(consumer.channel.slug, consumer.client_id, principal=acting("user:olga"))
    assert look(now) == []
    consumers.resume(consumer.channel.slug, consumer.client_id, principal=acting("user:olga"))
    HealthStatus.objects.create(consumer=consumer, state="failing", since=now, looked_at=now)
    assert look(now) == [], "its owners know why it waits"
    HealthStatus.objects.update(state="healthy")
    assert len(look(now)) == 1


def test_every_slice_of_keys_is_scanned(
    consumer: Consumer, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_keys, "SLICE", 2)
    crowd(consumer, " ".join(f"{key}0" for key in "ABCDE" for _ in range(3)))
    assert len(look(now)) == 1
    assert hot_keys.totals() == (5, 2)


@pytest.mark.parametrize("is_known", [False, True])
def test_concurrent_scans_notify_once(
    consumer: Consumer, now: datetime, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_known:
        HealthStatus.objects.create(consumer=consumer, since=now, looked_at=now)
    crowd(consumer, "A0 A0 A0")
    gate, of = threading.Barrier(4), HealthStatus.of

    def together(consumer: Consumer) -> HealthStatus:
        """Let nobody write before all have read."""
        known = of(consumer)
        gate.wait(60)
        return known

    monkeypatch.setattr(HealthStatus, "of", together)

    at_once(*[lambda: list(hot_keys.scan(now))] * 4)
    assert Notification.objects.count() == 1


@pytest.mark.seed("S3-32")
def test_console_and_metrics_show_hot_keys(consumer: Consumer, now: datetime) -> None:
    operator, page = console.operator(), reverse("admin:index")
    assert 'id="hot-keys"' not in console.look(operator, console.list_url(OrderingKey))
    crowd(consumer, "A0 A0 A0")
    look(now)
    name = f"{consumer.channel.slug}/{consumer.client_id}"
    assert f"2 deliveries wait behind A of {name}" in console.look(operator, page)
    text = console.look(operator, console.list_url(OrderingKey))
    assert f'href="?q={name}/A"' in text
    answer = operator.get(f"{console.list_url(OrderingKey)}?q={name}/A")
    assert list(answer.context["cl"].result_list) == [key_number_of(consumer, "A")]
    scrape = Client().get("/metrics").content.decode()
    assert "hookstation_hot_keys 1.0" in scrape
    assert "hookstation_hot_key_waiting 2.0" in scrape
    assert consumer.client_id not in scrape, "no series for a key or its consumer"
    drain(consumer, now)
    look(now + MINUTE)
    assert "ordering keys with a large or long-blocked backlog" in console.look(operator, page)
    assert "hookstation_hot_keys 0.0" in Client().get("/metrics").content.decode()
