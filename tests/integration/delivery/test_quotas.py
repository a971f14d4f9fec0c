"""Quotas across processes: maintenance counts, and every accepting process reads the count."""

import json
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.core import mail

from channels_app.conf import conf
from channels_app.core.errors import OverQuota
from channels_app.core.rate_limits import Usage
from channels_app.database import clock
from channels_app.ingest import accept, limits, storage
from channels_app.ingest.accept import Publication
from channels_app.ingest.storage import Room
from channels_app.models import Channel, Membership, Message, QuotaUsage
from channels_app.registry import consumers, inbound_addresses
from delivery.health import notifications
from delivery.maintenance import quota_usage as counting
from delivery.maintenance import sweeps
from delivery.maintenance.sweeps import SweepScheduler
from delivery.models import Delivery, Notification, SweepRun
from delivery.queue import cancel, fanout
from tests.support.api import Api, LeanClient
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    ProducerFactory,
    TeamFactory,
)
from tests.support.limits import a_short_disk
from tests.support.principals import acting
from tests.support.pulling import Worker
from tests.support.pumping import (
    make_channel,
    make_consumer,
    publish,
    pump_until,
    pumping,
    view_of,
)
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)
SWEEP = next(sweep for sweep in sweeps.SWEEPS if sweep.name == "quotas")


def count() -> None:
    """Run the maintenance process's sweep once."""
    SweepRun.objects.update_or_create(name="quotas", defaults={"next_at": clock.now()})
    rounds = SweepScheduler([SWEEP])
    assert rounds.turn() == 1
    while rounds.is_busy:
        rounds.turn()


class Process:
    """The quota state of one web process."""

    def __init__(self) -> None:
        self.quotas = limits.Quotas()

    def accept(self, monkeypatch: pytest.MonkeyPatch, channel: Channel, number: int) -> int:
        """Publish until refused; return the number accepted."""
        with monkeypatch.context() as patch:
            for name in ("take", "give_back"):
                patch.setattr(limits, name, getattr(self.quotas, name))
            for taken in range(number):
                try:
                    publish(channel, b"{}")
                except OverQuota:
                    return taken
        return number


def usage(scope: str, owner_id: int = 0) -> Usage:
    return QuotaUsage.objects.get(scope=scope, owner_id=owner_id).usage


@pytest.mark.trap("an unlimited backlog")
def test_processes_exceed_a_quota_by_at_most_what_others_stored_since_the_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = make_channel(max_waiting_messages=10)
    make_consumer(channel, "http://127.0.0.1:9/")
    one, other = Process(), Process()
    assert one.accept(monkeypatch, channel, 6) == 6
    # The other process does not know of those yet: it has the whole limit, and no more.
    assert other.accept(monkeypatch, channel, 20) == 10
    count()
    monkeypatch.setattr(limits, "READ_S", 0.0)
    assert one.accept(monkeypatch, channel, 20) == 0
    assert Message.objects.count() == 16
    assert usage("channel", channel.pk) == Usage(16, 32)


def test_messages_accepted_during_a_count_are_included(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "READ_S", 0.0)
    channel = make_channel(max_waiting_messages=2)
    mine = Process()
    began = counting.count(clock.now())
    assert mine.accept(monkeypatch, channel, 2) == 2
    for _ in began:
        pass
    QuotaUsage.objects.update(messages=0)  # as if the count had been taken earlier
    assert mine.accept(monkeypatch, channel, 1) == 0


def test_a_quota_is_freed_when_messages_finish() -> None:
    channel = make_channel(max_waiting_messages=2)
    consumer = make_consumer(channel, "http://127.0.0.1:9/")
    publish(channel, b"1", b"2")
    fanout.fan_out(10, 0)
    count()
    assert usage("channel", channel.pk) == Usage(2, 2)
    assert QuotaUsage.objects.get(scope="channel").level == "full"
    assert SWEEP.has_work is not None
    assert SWEEP.has_work(), "somebody waits for room"
    consumer.state = "retired"
    consumer.save()
    cancel.cancel_retired(clock.now(), 0, 10)
    count()
    limits.forget()
    assert usage("channel", channel.pk) == Usage()
    assert not SWEEP.has_work()
    publish(channel, b"3")
    assert SWEEP.has_work()


@pytest.mark.trap("an unlimited backlog")
@pytest.mark.trap("a full disk")
@pytest.mark.parametrize("reason", ["channel_over_quota", "storage_full"])
def test_acknowledgements_are_accepted_while_publishing_is_refused(
    reason: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledgements make room: an acknowledged delivery no longer waits."""
    is_quota = reason == "channel_over_quota"
    channel = make_channel(max_waiting_messages=3 if is_quota else None)
    settings = {"mode": "callback", "timeout_ms": 60_000, "on_timeout": "retry"}
    make_consumer(channel, receiver.url("/called"), ack=settings)
    provider = {**settings, "correlation": {"preset": "whatsapp-cloud"}}
    answers = [Reply(body=b'{"messages": [{"id": "wamid.%d"}]}' % n) for n in range(3)]
    receiver.script("/provider", answers)
    values = {"url": receiver.url("/provider"), "ack": provider}
    called_back = consumers.put(channel.slug, "provider", values, principal=acting("test")).row
    worker = Worker(ConsumerFactory.create(channel=channel, pull=True))
    publish(channel, b"1", b"2", b"3")
    with pumping() as pump:
        pump_until(pump, lambda: Delivery.objects.filter(state="awaiting_ack").count() == 6)
    producer = Api(ApiKeyFactory.create())

    def refused() -> bool:
        answer = producer.post(f"channels/{channel.slug}/messages", b"{}")
        assert answer.status == 202 or answer.json["code"] == reason
        return answer.status != 202

    with nullcontext() if is_quota else a_short_disk(monkeypatch):
        assert refused()
        for request in receiver.requests("/called"):
            path = urlsplit(request.header("Hookstation-Ack-Url") or "").path
            answer = LeanClient().post(path, b"", "application/json")
            assert answer.json()["result"] == "on_time"
        address = urlsplit(inbound_addresses.url(called_back) or "").path
        for n in range(3):
            status = {"id": f"wamid.{n}", "status": "delivered"}
            told = {"entry": [{"changes": [{"value": {"statuses": [status]}}]}]}
            answer = LeanClient().post(address, json.dumps(told), "application/json")
            assert answer.json()["results"] == {"on_time": 1}
        first, second, third = (one["lease"] for one in worker.receive(max=3))
        said = {"extend": first, "nack": second, "release": third}
        for what, lease in said.items():
            more = {"delay_s": 0} if what == "nack" else {}
            assert worker.say(what, lease, **more) == ([lease], {})
        assert worker.say("ack", first) == ([first], {})
        again = [one["lease"] for one in worker.receive(max=3)]
        assert worker.say("ack", *again) == (again, {})
    assert set(Delivery.objects.values_list("state", flat=True)) == {"delivered"}
    if is_quota:
        count()
        limits.forget()
    assert not refused()


def test_a_long_count_runs_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "SLICE", 3)
    channel = make_channel()
    make_consumer(channel, "http://127.0.0.1:9/")
    publish(channel, *[b"12345"] * 8)
    steps = list(counting.count(clock.now()))
    assert sum(steps) == 1
    assert usage("all") == Usage(8, 40)
    fanout.fan_out(10, 0)
    publish(channel, b"12345")
    list(counting.count(clock.now() + timedelta(seconds=1)))
    assert usage("all") == Usage(9, 45)


def levels() -> list[tuple[str, str]]:
    """Return the notifications, oldest first."""
    return list(Notification.objects.order_by("id").values_list("limit", "kind"))


@pytest.mark.trap("an unlimited backlog")
def test_people_are_notified_before_a_quota_is_reached_once_per_change() -> None:
    team = TeamFactory.create(slug="shop", max_waiting_messages=10)
    owner = User.objects.create_user("olga", "olga@example.com")
    Membership.objects.create(team=team, user=owner, role="owner")
    producer = ProducerFactory.create(team=team)
    channel = make_channel()
    make_channel_for_events = ChannelFactory.create(slug="hookstation")
    view = view_of(channel)

    def accept_more(number: int) -> None:
        accept.accept(view, producer.pk, [Publication(b"x")] * number)
        for _ in range(2):
            count()
        limits.forget()  # otherwise this process counts recent messages twice

    accept_more(7)
    assert levels() == []
    accept_more(1)
    assert levels() == [("team shop", "limit_near")]
    accept_more(2)
    assert levels()[1:] == [("team shop", "limit_full")]
    Message.objects.filter(channel=channel).update(state="cancelled")
    accept_more(0)
    assert levels()[2:] == [("team shop", "limit_ok")]
    for _ in notifications.sweep():
        pass
    events = Message.objects.filter(channel=make_channel_for_events).order_by("id")
    names = [event.event_type for event in events]
    assert names == [f"hookstation.limit.{name}" for name in ("near", "full", "ok")]
    assert notifications.mail() == 3
    first = mail.outbox[0]
    assert (first.subject, first.to) == ("team shop is near its limit", ["olga@example.com"])
    assert "8 of 10 messages" in first.body


def test_people_are_notified_before_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    low = max(storage.LOW_BYTES, storage.ALARM * conf().disk_reserve_bytes)
    for free in (low * 2, low - 1, low, 1, low * 2):
        room = Room(Path("/"), free, low * 4)
        monkeypatch.setattr(storage.disks, "rooms", lambda room=room: [room])
        count()
    assert [kind for _, kind in levels()] == ["limit_near", "limit_full", "limit_ok"]


def test_a_deleted_team_gets_no_quota_notifications() -> None:
    team = TeamFactory.create(max_waiting_messages=1)
    producer = ProducerFactory.create(team=team)
    accept.accept(view_of(make_channel()), producer.pk, [Publication(b"x")])
    count()
    assert [kind for _, kind in levels()] == ["limit_full"]
    producer.team = None
    producer.save()
    team.delete()
    count()
    assert levels() == []  # deleted with the team
    assert not QuotaUsage.objects.filter(scope="team").exists()
