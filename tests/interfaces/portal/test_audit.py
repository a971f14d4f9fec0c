"""The audit log of a team: all actions on its own objects, and no others."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from channels_app.core.ids import DELIVERY, to_public
from channels_app.database import clock
from channels_app.models import AuditEntry, Team
from channels_app.portal.views import team as team_views
from channels_app.registry import api_keys, consumers, producers, secrets
from delivery import replay
from delivery.health import consumer_health
from delivery.queue import cancel, reschedule
from delivery.replay import ReplayFilter
from tests.support import people
from tests.support.factories import (
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    MessageFactory,
    ProducerFactory,
    TeamFactory,
)
from tests.support.principals import acting

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(team: Team) -> Client:
    return people.person("vera", team, "viewer")


def told(client: Client, query: str = "") -> list[str]:
    """Return the actions that the page shows, newest first."""
    html = client.get(f"/portal/acme/audit/{query}").content.decode()
    return re.findall(r'data-label="Did"[^>]*>([\w.]+)<', html)


def test_every_change_of_a_teams_objects_is_listed(team: Team, viewer: Client) -> None:
    ChannelFactory.create(slug="orders", external=True)
    who: Any = {"principal": acting("user:olga")}
    producers.put("shop", {"team": "acme"}, **who)
    key = api_keys.create({"all_channels": True}, producer="shop", **who).row
    api_keys.rotate(key.key_id, {}, **who)
    api_keys.revoke(key.key_id, **who)
    api_keys.create({"scopes": ["read"]}, team="acme", **who)
    wanted = {"url": "http://127.0.0.1/hook", "team": "acme"}
    consumers.put("orders", "till", wanted, **who)
    secrets.rotate("orders", "till", {}, **who)
    consumers.pause("orders", "till", **who)
    consumers.resume("orders", "till", **who)

    assert told(viewer) == [
        "consumer.resume", "consumer.pause", "consumer.rotate_secret", "consumer.create",
        "key.create", "key.revoke", "key.expire", "key.rotate", "key.create", "producer.create",
    ]  # fmt: skip


def test_actions_on_a_teams_deliveries_are_listed(team: Team, viewer: Client) -> None:
    consumer = ConsumerFactory.create(team=team)
    principal, now = acting("user:olga"), clock.now()
    dead = DeliveryFactory.create(consumer=consumer, dead=True)
    replay.replay_one(dead.id, principal, now=now)
    cancel.cancel_one(dead.id, principal, now=now)
    wanted = ReplayFilter(channel=consumer.channel.slug)
    started = replay.create(wanted, replay.consumers_of(wanted, principal), principal, now=now)
    replay.cancel(started.id, principal, now=now)
    producer = ProducerFactory.create(team=team)
    message = MessageFactory.create(producer=producer, scheduled=True)
    reschedule.reschedule(message.id, principal, now=now, priority=7)
    cancel.cancel_message(message.id, principal, now=now)
    consumer_health.disable(consumer.id, reason="gone", now=now)

    assert told(viewer) == [
        "consumer.disable", "message.cancel", "message.reschedule", "replay.cancel",
        "replay.create", "delivery.cancel", "delivery.replay",
    ]  # fmt: skip
    assert to_public(DELIVERY, dead.id) in viewer.get("/portal/acme/audit/").content.decode()


def test_entries_of_other_teams_are_not_listed(team: Team, viewer: Client) -> None:
    other = TeamFactory.create(slug="other")
    theirs = ConsumerFactory.create(team=other, client_id="theirs")
    nobody_s = ConsumerFactory.create(client_id="nobodys")
    for consumer in (theirs, nobody_s):
        consumers.pause(consumer.channel.slug, consumer.client_id, principal=acting("user:olga"))

    assert told(viewer) == []
    assert AuditEntry.objects.count() == 2


def test_entries_show_old_and_new_values(team: Team, viewer: Client) -> None:
    AuditEntry.record(
        "user:<b>", "consumer.update", "consumer:x", team_id=team.pk, reason="<i>why</i>",
        before={"url": "http://old", "same": 1}, after={"url": "http://new", "same": 1},
    )  # fmt: skip

    html = viewer.get("/portal/acme/audit/").content.decode()

    assert "<del>http://old</del> <ins>http://new</ins>" in html
    assert "same" not in html.split("<main")[1]
    assert "&lt;i&gt;why&lt;/i&gt;" in html
    assert "user:&lt;b&gt;" in html


def test_pages_follow_each_other_in_index_order(
    team: Team, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_views, "PAGE", 2)
    for number in range(5):
        AuditEntry.record("broker", f"act.n{number}", "x", team_id=team.pk)
    seen, query = [], ""
    while True:
        seen.append(told(viewer, query))
        html = viewer.get(f"/portal/acme/audit/{query}").content.decode()
        older = re.search(r'href="(\?before=\d+)"', html)
        if older is None:
            break
        query = older[1]

    assert seen == [["act.n4", "act.n3"], ["act.n2", "act.n1"], ["act.n0"]]
    assert told(viewer, "?before=nonsense") == ["act.n4", "act.n3"]


def test_the_list_is_served_by_its_index(team: Team) -> None:
    AuditEntry.objects.bulk_create(
        AuditEntry(actor="a", action="b", target="c", team_id=number % 50) for number in range(200)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE channels_app_auditentry")
    entries = AuditEntry.objects.filter(team_id=7, id__lt=10**9).order_by("-id")[:51]

    plan = entries.explain()

    assert "audit_team" in plan, plan
    assert "TEMP B-TREE" not in plan, plan
