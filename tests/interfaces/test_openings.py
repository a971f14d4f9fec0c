"""The audit log records who opened a message's content; sensitive channels restrict it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.urls import reverse

from channels_app.core import access
from channels_app.models import AuditEntry, Channel, Consumer, Message, Producer
from channels_app.registry import viewing
from delivery.models import Attempt, DeadCluster, Delivery
from tests.interfaces.console.test_granting import client_of, person
from tests.support import console, people, world
from tests.support.calling import Api, problem
from tests.support.factories import (
    ApiKeyFactory,
    AttemptFactory,
    DeliveryFactory,
    MessageFactory,
    TeamFactory,
)
from tests.support.pulling import Worker, waiting

pytestmark = pytest.mark.django_db

SECRET, HEADER, ANSWER = "body-of-olaf", "header-of-olaf", "answer-of-olaf"
VIEW = tuple(
    f"{app}.view_{model}"
    for app, model in (
        ("channels_app", "message"),
        ("channels_app", "schedule"),
        ("delivery", "delivery"),
        ("delivery", "attempt"),
        ("delivery", "deadcluster"),
    )
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    viewing.forget()
    yield
    viewing.forget()


@dataclass(frozen=True, slots=True)
class Made:
    """A message with recognizable body, header and response."""

    consumer: Consumer
    producer: Producer
    message: Message
    dead: Delivery
    schedule: str


@pytest.fixture
def made() -> Made:
    found = world.make(TeamFactory.create(slug="acme"))
    message = MessageFactory.create(
        channel=found.consumer.channel,
        producer=found.producer,
        headers={"X-Name": HEADER},
        dispatched=True,
        body=SECRET.encode(),
    )
    dead = DeliveryFactory.create(consumer=found.consumer, message=message, dead=True)
    AttemptFactory.create(
        delivery=dead, answer_headers=f"X: {ANSWER}", answer_excerpt=ANSWER.encode()
    )
    return Made(found.consumer, found.producer, message, dead, found.parameters["schedule"])


def sensitive(made: Made) -> None:
    Channel.objects.filter(pk=made.consumer.channel_id).update(sensitive=True)


def openings() -> list[tuple[str, str, str, list[str]]]:
    """Return who opened which object, from where, and which parts of it."""
    found = AuditEntry.objects.filter(action__endswith=".open").order_by("id")
    return [(one.actor, one.target, one.source, (one.after or {})["opened"]) for one in found]


def console_pages(made: Made) -> dict[str, str]:
    attempt = Attempt.objects.get(delivery=made.dead)
    return {
        "message": reverse("admin:channels_app_message_change", args=[made.message.pk]),
        "file": reverse("admin:channels_app_message_body", args=[made.message.pk]),
        "delivery": reverse("admin:delivery_delivery_change", args=[made.dead.pk]),
        "attempt": reverse("admin:delivery_attempt_change", args=[attempt.pk]),
    }


def portal_page(made: Made) -> str:
    channel, name = made.consumer.channel.slug, made.consumer.client_id
    return f"/portal/acme/webhooks/{channel}/{name}/deliveries/{made.dead}/"


@pytest.mark.trap("unaudited reading")
def test_viewing_content_in_the_console_is_audited(made: Made) -> None:
    client = console.operator()
    shown = {name: client.get(page).content.decode() for name, page in console_pages(made).items()}

    assert all(SECRET in shown[name] for name in ("message", "file", "delivery"))
    assert HEADER in shown["message"]
    assert ANSWER in shown["attempt"]
    message, delivery, source = f"message:{made.message}", f"delivery:{made.dead}", "127.0.0.1"
    assert openings() == [
        ("user:olga", message, f"console {source}", ["body", "headers"]),
        ("user:olga", message, f"console {source}", ["body"]),
        ("user:olga", delivery, f"console {source}", ["body", "headers", "answers"]),
        ("user:olga", delivery, f"console {source}", ["answers"]),
    ]
    entry = AuditEntry.objects.filter(action="message.open").earliest("id")
    assert "console 127.0.0.1" in console.look(
        client, reverse("admin:channels_app_auditentry_change", args=[entry.pk])
    )


def test_viewing_content_in_the_portal_is_audited(made: Made) -> None:
    team = made.consumer.team
    shown = people.person("vera", team, "viewer").get(portal_page(made)).content.decode()

    assert SECRET in shown
    assert openings() == [
        ("user:vera", f"delivery:{made.dead}", "portal 127.0.0.1",
         ["body", "headers", "answers", "curl"]),
    ]  # fmt: skip


def test_reading_content_and_secrets_over_the_api_is_audited(made: Made) -> None:
    key = ApiKeyFactory.create(team=made.consumer.team, scopes=["read"])
    api = Api(key)
    paths = (
        f"/messages/{made.message}",
        f"/messages/{made.message}/body",
        f"/deliveries/{made.dead}",
        f"/channels/{made.consumer.channel.slug}/messages",
        f"/channels/{made.consumer.channel.slug}/schedules",
        f"/channels/{made.consumer.channel.slug}/consumers/{made.consumer.client_id}/dead-letters",
    )
    for path in (*paths, *paths):
        assert api.get(path).status_code == 200, path

    who, where = f"key:{key.key_id}", "api 127.0.0.1"
    assert openings() == [
        (who, f"message:{made.message}", where, ["headers"]),
        (who, f"message:{made.message}", where, ["body"]),
        (who, f"delivery:{made.dead}", where, ["answers"]),
    ]
    channel, admin = made.consumer.channel.slug, Api(admin=True)
    admin.get(f"/channels/{channel}/schedules/{made.schedule}")
    assert openings()[-1][1::2] == (f"schedule:{channel}/{made.schedule}", ["body", "headers"])
    path = f"/channels/{channel}/consumers/{made.consumer.client_id}/secrets"
    assert admin.post(path).json()["secret"]
    assert AuditEntry.objects.latest("id").source == where


def test_the_audited_address_comes_from_a_trusted_proxy(made: Made, settings: Any) -> None:
    api, path = Api(admin=True), f"/messages/{made.message}/body"
    forged = {"x_forwarded_for": "9.9.9.9, 203.0.113.7"}
    api.get(path, **forged)
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = 1
    api.get(path, **forged)

    assert [source for _, _, source, _ in openings()] == ["api 127.0.0.1", "api 203.0.113.7"]


@pytest.mark.parametrize("is_sensitive", [False, True])
def test_receiving_messages_is_not_audited(is_sensitive: bool) -> None:
    consumer = waiting(b"once")
    Channel.objects.filter(pk=consumer.channel_id).update(sensitive=is_sensitive)
    worker = Worker(consumer)

    (one,) = worker.receive()
    assert one["body"] == "once"
    # A worker fetches a body that is too large for the response like this.
    path = f"/messages/{one['id']}/body"
    assert worker.api.get(path).status_code == 200
    assert openings() == []

    worker.say("ack", one["lease"])
    assert worker.api.get(path).status_code == (403 if is_sensitive else 200)
    assert len(openings()) == (0 if is_sensitive else 1)


@pytest.mark.trap("sensitive bodies for every viewer")
@pytest.mark.parametrize("may", [False, True])
def test_a_sensitive_body_needs_an_extra_permission_in_the_console(made: Made, may: bool) -> None:
    sensitive(made)
    user = person("vera", *VIEW, *((access.SENSITIVE,) if may else ()))
    client = client_of(user)
    shown = {name: client.get(page) for name, page in console_pages(made).items()}

    for name, answer in shown.items():
        text = answer.content.decode()
        assert answer.status_code == (200 if may or name != "file" else 403), name
        found = {word for word in (SECRET, HEADER, ANSWER) if word in text}
        assert bool(found) is may, (name, found)
    assert bool(openings()) is may


@pytest.mark.parametrize("role", ["viewer", "editor", "owner"])
def test_a_sensitive_body_is_shown_only_to_owners_in_the_portal(made: Made, role: str) -> None:
    sensitive(made)
    client = people.person("vera", made.consumer.team, role)
    text = client.get(portal_page(made)).content.decode()

    assert {word in text for word in (SECRET, HEADER, ANSWER)} == {role == "owner"}
    assert bool(openings()) is (role == "owner")


@pytest.mark.parametrize("scopes", [["read"], ["read", "sensitive"]])
def test_a_sensitive_body_needs_its_own_scope_in_the_api(made: Made, scopes: list[str]) -> None:
    sensitive(made)
    may = "sensitive" in scopes
    api = Api(ApiKeyFactory.create(team=made.consumer.team, scopes=scopes))

    told = api.get(f"/messages/{made.message}").json()
    assert told["headers"] == ({"X-Name": HEADER} if may else None)
    (attempt,) = api.get(f"/deliveries/{made.dead}").json()["attempts"]
    assert (attempt["response"] is not None) is may
    body = api.get(f"/messages/{made.message}/body")
    if may:
        assert body.content == SECRET.encode()
    else:
        assert problem(body)[:2] == (403, "sensitive_channel")
    assert len(openings()) == (3 if may else 0)
    producer = Api(ApiKeyFactory.create(producer=made.producer, scopes=["read", *scopes[1:]]))
    schedule = f"/channels/{made.consumer.channel.slug}/schedules/{made.schedule}"
    assert (producer.get(schedule).json()["body"] is not None) is may


def test_no_list_shows_responses_of_a_sensitive_channel(made: Made) -> None:
    DeadCluster.objects.create(
        place=1, signature="s", outcome="server_error", shape=ANSWER, kind="fix", run_id=1,
        dead_count=1, consumer_count=1,
        consumers=[{"consumer": made.consumer.pk, "channel": made.consumer.channel_id, "name": "c",
                    "dead": 1, "sendable": 0, "matches": 0, "begins": "", "ends": ""}],
        first_seen_at="2026-01-01T00:00:00Z", last_seen_at="2026-01-01T00:00:00Z",
        began_at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    page, client = reverse("admin:triage"), console.operator()
    assert ANSWER in console.look(client, page)
    sensitive(made)
    assert ANSWER not in console.look(client, page)
