"""Notifications: each change of a consumer's health is reported to its owners once."""

import json
import socket
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django_q.models import OrmQ

from channels_app.access.principal import Principal
from channels_app.database import clock
from channels_app.models import Channel, Consumer, Membership, Message, Team
from channels_app.registry import consumers
from delivery import replay
from delivery.cluster import tasks
from delivery.health import consumer_health, monitor, notifications
from delivery.maintenance import retention
from delivery.models import ConsumerHealth, Delivery, HealthStatus, Notification
from delivery.transport import payloads
from tests.support.factories import ChannelFactory, DeliveryFactory, TeamFactory
from tests.support.principals import acting
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    pumping,
)
from tests.support.receiver import Receiver, Reply
from tests.support.threads import at_once

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = timedelta(minutes=1)


@pytest.fixture
def team() -> Team:
    """A team of owner, editor, viewer, a deactivated owner and an owner without an e-mail."""
    team = TeamFactory.create(slug="shop")
    for name, role, address in (
        ("olga", "owner", "olga@example.com"),
        ("ed", "editor", "ed@example.com"),
        ("vera", "viewer", "vera@example.com"),
        ("gone", "owner", "gone@example.com"),
        ("nobody", "owner", ""),
    ):
        user = User.objects.create_user(name, address, is_active=name != "gone")
        Membership.objects.create(team=team, user=user, role=role)
    return team


@pytest.fixture
def consumer(team: Team) -> Consumer:
    """A consumer of that team, at an address where no server listens."""
    return make_consumer(make_channel(exposure="external"), "http://127.0.0.1:9/", team=team)


def fails(consumer: Consumer, at: datetime, *, count: int = 20, circuit: str = "open") -> None:
    """Store what the pump stores of a consumer that responds with failures."""
    ConsumerHealth.objects.update_or_create(
        consumer=consumer,
        defaults={
            "circuit": circuit,
            "consecutive_failures": count,
            "failing_since": at,
            "last_failure_at": at,
            "last_outcome": "timeout",
        },
    )


def works(consumer: Consumer, at: datetime) -> None:
    """Store what the pump stores of a consumer that took a message."""
    ConsumerHealth.objects.update_or_create(
        consumer=consumer,
        defaults={
            "circuit": "closed",
            "consecutive_failures": 0,
            "failing_since": None,
            "last_success_at": at,
            "last_outcome": "delivered",
        },
    )


def look(now: datetime) -> list[str]:
    """Return the kinds of notifications that one more check creates."""
    before = Notification.objects.count()
    assert sum(monitor.watch(now)) == Notification.objects.count() - before
    return list(Notification.objects.order_by("id").values_list("kind", flat=True)[before:])


def test_each_health_change_is_notified_once(consumer: Consumer) -> None:
    now = clock.now()
    assert look(now) == []
    works(consumer, now)
    assert look(now) == []
    fails(consumer, now + MINUTE)
    assert look(now + MINUTE) == ["failing"]
    for minute in (2, 10, 29):
        fails(consumer, now + minute * MINUTE)
        assert look(now + minute * MINUTE) == []
    works(consumer, now + 29.5 * MINUTE)
    assert look(now + 29.5 * MINUTE) == []  # a single success is not yet a recovery
    assert look(now + 31 * MINUTE) == ["recovered"]
    assert look(now + 32 * MINUTE) == []
    fails(consumer, now + 40 * MINUTE)
    assert look(now + 40 * MINUTE) == ["failing"]


def test_few_failures_are_notified_only_if_they_last(consumer: Consumer) -> None:
    now = clock.now()
    fails(consumer, now, count=3, circuit="closed")
    assert look(now + 9 * MINUTE) == []
    assert look(now + 10 * MINUTE) == ["failing"]
    reason = Notification.objects.get().reason
    assert reason == "The last 3 attempts failed; the last one ended with timeout."


def test_a_consumer_with_410_is_notified_only_as_disabled(
    consumer: Consumer, receiver: Receiver
) -> None:
    Consumer.objects.filter(id=consumer.id).update(url=receiver.url("/status/410"))
    publish(consumer.channel, b"{}")
    with pumping() as pump:
        pump_until(pump, all_finished)
        pump_until(pump, lambda: ConsumerHealth.objects.exists())
    assert Delivery.objects.get().state == "dead"
    now = clock.now() + timedelta(seconds=1)
    assert look(now) == ["disabled"]
    assert look(now + 2 * MINUTE) == []
    assert Notification.objects.get().reason == "It answered 410 Gone."
    # Earlier failures are not reported again after somebody resumed the consumer.
    consumers.resume(consumer.channel.slug, consumer.client_id, principal=acting("user:olga"))
    assert look(clock.now() + MINUTE) == []
    works(consumer, clock.now() + 2 * MINUTE)
    assert look(clock.now() + 4 * MINUTE) == ["recovered"]


def test_a_consumer_that_a_person_paused_is_left_alone(consumer: Consumer) -> None:
    consumers.pause(consumer.channel.slug, consumer.client_id, principal=acting("user:olga"))
    fails(consumer, clock.now() + MINUTE)
    assert look(clock.now() + 2 * MINUTE) == []


def test_a_dead_letter_is_notified_once_a_day(consumer: Consumer) -> None:
    now = clock.now()

    def dies(at: datetime) -> Delivery:
        ConsumerHealth.objects.update_or_create(consumer=consumer, defaults={"last_failure_at": at})
        return DeliveryFactory.create(dead=True, consumer=consumer, finished_at=at)

    first = dies(now)
    assert look(now + MINUTE) == ["dead_letter"]
    assert str(first) in Notification.objects.get().reason
    dies(now + 2 * MINUTE)
    assert look(now + 5 * MINUTE) == []
    # After a day a new dead letter is reported, but not the existing ones.
    day = timedelta(days=1, minutes=2)
    assert look(now + day) == []
    assert look(now + day + 2 * MINUTE) == []
    dies(now + day + 3 * MINUTE)
    assert look(now + day + 4 * MINUTE) == ["dead_letter"]
    # So is one after all earlier ones were replayed.
    for row in Delivery.objects.filter(state="dead"):
        replay.replay_one(row.id, Principal("user:olga"), now=clock.now())
    assert look(now + day + 8 * MINUTE) == []
    dies(now + day + 9 * MINUTE)
    assert look(now + day + 10 * MINUTE) == ["dead_letter"]


def test_concurrent_scans_notify_once(consumer: Consumer) -> None:
    fails(consumer, clock.now())
    now = clock.now() + MINUTE

    def race() -> None:
        list(monitor.watch(now))
        list(notifications.sweep())

    channel = ChannelFactory.create(slug=notifications.CHANNEL)
    # Accessed here, so that every thread knows the system channel.
    assert channel.exposure == Channel.Exposure.INTERNAL
    at_once(*[race] * 4)
    assert [notice.kind for notice in Notification.objects.all()] == ["failing"]
    assert Message.objects.filter(channel=channel).count() == 1
    assert HealthStatus.objects.get().state == "failing"


def test_the_event_is_published_on_the_operators_channel(consumer: Consumer) -> None:
    channel = ChannelFactory.create(slug=notifications.CHANNEL)
    now = clock.now()
    consumer_health.disable(consumer.id, reason="It answered 410 Gone.", now=now)
    list(notifications.sweep())
    list(notifications.sweep())
    notice, message = Notification.objects.get(), Message.objects.get(channel=channel)
    assert notice.message_id == message.id
    assert message.event_type == "hookstation.consumer.disabled"
    body = payloads.load([message.id])[message.id].body
    assert body is not None
    notification = json.loads(body)
    assert notification["type"] == "hookstation.consumer.disabled"
    assert notification["data"]["consumer"] == consumer.client_id
    assert notification["data"]["team"] == "shop"
    assert notification["data"]["reason"] == "It answered 410 Gone."
    assert f"/portal/shop/webhooks/{consumer.channel}/{consumer}/" in notification["data"]["url"]


@pytest.mark.parametrize("exposure", ["external", None])
def test_teams_get_no_notifications_of_other_teams(
    consumer: Consumer, exposure: str | None
) -> None:
    """Nothing is published to an external channel; a missing channel is no error."""
    if exposure:
        ChannelFactory.create(slug=notifications.CHANNEL, exposure=exposure)
    fails(consumer, clock.now())
    list(notifications.sweep())
    assert Notification.objects.get().published
    assert not Message.objects.exists()


def test_a_failing_consumer_of_events_is_not_notified_about_itself() -> None:
    listener = make_consumer(
        ChannelFactory.create(slug=notifications.CHANNEL), "http://127.0.0.1:9/"
    )
    fails(listener, clock.now())
    list(notifications.sweep())
    assert Notification.objects.get().kind == "failing"
    assert not Message.objects.exists()


def test_owners_and_editors_get_one_mail_each(consumer: Consumer) -> None:
    fails(consumer, clock.now())
    list(notifications.sweep())
    assert OrmQ.objects.count() == 1  # the maintenance process does not wait for a mail server
    assert tasks.mail() == 1
    assert tasks.mail() == 0
    (letter,) = mail.outbox
    assert letter.to == ["ed@example.com", "olga@example.com"]
    assert letter.subject == f"{consumer.channel}/{consumer} is failing"
    assert "The last 20 attempts failed; the last one ended with timeout." in letter.body
    assert f"/portal/shop/webhooks/{consumer.channel}/{consumer}/" in letter.body
    assert Notification.objects.get().mailed_to == letter.to
    list(notifications.sweep())
    assert OrmQ.objects.count() == 1


def test_an_unavailable_mail_server_is_retried(consumer: Consumer, settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9
    fails(consumer, clock.now())
    list(notifications.sweep())
    assert tasks.mail() == 0
    notice = Notification.objects.get()
    assert "ConnectionRefusedError" in notice.mail_error
    assert notice.mail_due_at is not None
    assert notice.mail_due_at > clock.now() + timedelta(seconds=30)
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    Notification.objects.update(mail_due_at=clock.now() - MINUTE)
    assert tasks.mail() == 1
    assert Notification.objects.get().mail_error == ""


def due(consumer: Consumer, count: int) -> list[Notification]:
    """Create notifications whose e-mail is due."""
    at = clock.now() - MINUTE
    return [
        Notification.objects.create(consumer=consumer, kind="failing", at=at, mail_due_at=at)
        for _ in range(count)
    ]


def test_a_mail_server_that_hangs_costs_one_wait_a_task(
    consumer: Consumer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "MAIL_TIMEOUT_S", 0.3)
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    due(consumer, 5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings.EMAIL_HOST, settings.EMAIL_PORT = mute.getsockname()
        assert tasks.mail() == 0
    assert Notification.objects.exclude(mail_error="").count() == 1
    assert Notification.objects.filter(mail_count=0).count() == 4


def test_one_task_mails_at_a_time(consumer: Consumer) -> None:
    due(consumer, 2)
    for _ in range(3):
        list(notifications.sweep())
    assert OrmQ.objects.count() == 1
    OrmQ.objects.all().delete()
    list(notifications.sweep())
    assert OrmQ.objects.count() == 1


def test_an_invalid_mail_address_does_not_affect_others(
    consumer: Consumer, team: Team, settings: Any
) -> None:
    theirs = TeamFactory.create()
    other = make_consumer(consumer.channel, "http://127.0.0.1:9/", team=theirs)
    user = User.objects.create_user("odd", "odd@exa\nmple.com")
    Membership.objects.create(team=theirs, user=user, role="owner")
    (odd,), (fine,) = due(other, 1), due(consumer, 1)
    assert tasks.mail() == 1
    odd.refresh_from_db()
    fine.refresh_from_db()
    assert "ValueError" in odd.mail_error or "BadHeaderError" in odd.mail_error
    assert odd.mail_due_at is not None
    assert odd.mail_due_at > clock.now()
    assert fine.mailed_to


def test_a_mail_is_dropped_after_repeated_crashes(consumer: Consumer) -> None:
    due(consumer, 1)
    for _ in range(notifications.MAX_MAILS):
        assert notifications.claim(clock.now()) is not None
        Notification.objects.update(mail_due_at=clock.now() - MINUTE)
    assert notifications.claim(clock.now()) is None
    assert not notifications.has_mail(clock.now() + timedelta(days=1))
    assert Notification.objects.get().mail_error


def test_old_notifications_are_deleted_in_batches(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    long_ago = clock.now() - retention.NOTIFICATION_RETENTION
    old = Notification.objects.bulk_create(
        Notification(consumer=consumer, kind="failing", at=long_ago - day * MINUTE)
        for day in range(1, 4)
    )
    kept = Notification.objects.create(consumer=consumer, kind="failing", at=long_ago + MINUTE)
    assert list(retention.delete_notifications(clock.now())) == [2, 1]
    assert len(old) == 3
    assert Notification.objects.get() == kept


def test_without_a_team_nobody_is_mailed() -> None:
    fails(make_consumer(make_channel(), "http://127.0.0.1:9/"), clock.now())
    list(notifications.sweep())
    assert Notification.objects.get().mail_due_at is None
    assert tasks.mail() == 0


def test_an_outage_and_its_end_are_notified(
    consumer: Consumer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    Consumer.objects.filter(id=consumer.id).update(url=receiver.url("/hook"), max_attempts=5)
    receiver.script("/hook", [*[Reply(500)] * 4, Reply(200)])
    publish(consumer.channel, b"{}")
    with pumping() as pump:
        pump_until(pump, lambda: len(receiver.requests()) >= 3)
        pump_until(pump, lambda: ConsumerHealth.objects.exists())
        began = ConsumerHealth.objects.get().failing_since
        assert began is not None
        ConsumerHealth.objects.update(consecutive_failures=4)
        assert look(began + 11 * MINUTE) == ["failing"]
        HealthStatus.objects.update(since=began)
        pump_until(pump, all_finished)
        pump_until(pump, lambda: ConsumerHealth.objects.get().failing_since is None)
    assert look(clock.now() + 12 * MINUTE) == ["recovered"]
