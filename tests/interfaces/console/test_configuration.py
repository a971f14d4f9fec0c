"""The console's pages of configuration and messages: complete, and read-only for history."""

import json
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from channels_app.admin.consumer import ConsumerAdmin
from channels_app.core import ids
from channels_app.models import (
    ApiKey,
    AuditEntry,
    Channel,
    Consumer,
    ConsumerSecret,
    EventType,
    Membership,
    Message,
    MessageBody,
    Schedule,
    Team,
)
from channels_app.registry import inbound_addresses
from channels_app.serializers.consumers import ConsumerSerializer
from delivery.models import Delivery, MoveTask, Queue
from tests.support import console
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    EventTypeFactory,
    MessageFactory,
    ProducerFactory,
    TeamFactory,
)

pytestmark = pytest.mark.django_db

SHOWN_ELSEWHERE = {Queue, MoveTask}
"""Shown on the page of the queue's pull consumer, which test_queues.py covers."""
MODELS = [
    model
    for app in ("channels_app", "delivery")
    for model in console.models_of(app)
    if model not in SHOWN_ELSEWHERE
]


def audited(action: str) -> AuditEntry:
    """Return the only entry of an action."""
    return AuditEntry.objects.get(action=action)


def statements(captured: CaptureQueriesContext) -> list[str]:
    """Return the SQL with the same quotes for both databases."""
    return [query["sql"].replace("`", '"') for query in captured]


@pytest.mark.slow("opens the pages of every table")
def test_every_table_has_its_pages(operator: Client) -> None:
    for model in MODELS:
        assert admin.site.is_registered(model)
        text = console.look(operator, console.list_url(model))
        is_bare = model._meta.app_label == "channels_app" and not model._default_manager.exists()
        assert "Nothing is here yet" in text or not is_bare, model
    console.fill()
    for model in MODELS:
        text = console.look(operator, console.list_url(model, "?q=something"))
        assert ("Nothing matches" in text) == ("Show all" in text)
        for row in model._default_manager.all()[:2]:
            console.look(operator, console.page_url(row))


@pytest.mark.trap("missing authentication and readable secrets")
def test_secrets_are_on_no_page(operator: Client) -> None:
    console.fill()
    key, consumer = ApiKey.objects.get(), Consumer.objects.get()
    sealed = bytes(ConsumerSecret.objects.get().sealed)

    for row in (key, consumer):
        for url in (console.page_url(row), console.list_url(type(row))):
            text = console.look(operator, url)
            assert key.digest not in text
            assert sealed.hex() not in text
            assert repr(sealed) not in text


# -- Messages --------------------------------------------------------------------------------------


def test_a_message_is_found_by_its_whole_id(operator: Client) -> None:
    message, other = MessageFactory.create(), MessageFactory.create()

    text = console.look(operator, console.list_url(Message, f"?q={message}"))
    assert str(message) in text
    assert str(other) not in text
    assert str(message) not in console.look(operator, console.list_url(Message, "?q=msg_0"))


def test_a_public_id_in_the_address_leads_to_the_page(operator: Client) -> None:
    message = MessageFactory.create()

    answer = operator.get(reverse("admin:channels_app_message_change", args=[str(message)]))

    assert (answer.status_code, answer["Location"]) == (302, console.page_url(message))


@pytest.mark.trap("a body or response executed as a page")
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"b": 1, "a": ["\xc3\xa4"]}', "&quot;a&quot;: [\n    &quot;ä&quot;"),
        (b"<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        (b"\x00\xff\x10", "00000000  00 ff 10"),
        (b"", "0 bytes"),
    ],
    ids=["json", "html", "binary", "empty"],
)
def test_a_body_is_shown_as_text_and_never_executed(
    operator: Client, body: bytes, shown: str
) -> None:
    message = MessageFactory.create(body=body)

    text = console.look(operator, console.page_url(message))

    assert shown in text
    assert "<script>alert(1)" not in text


def test_an_undecryptable_body_shows_the_reason(operator: Client) -> None:
    message = MessageFactory.create()
    MessageBody.objects.update(data=bytes([1]) + b"x" * 60, key_id=b"xxxx".hex())

    assert "is not installed" in console.look(operator, console.page_url(message))
    MessageBody.objects.update(data=b"another one")
    assert "was changed or damaged" in console.look(operator, console.page_url(message))


def test_a_body_is_downloaded_unchanged(operator: Client) -> None:
    message = MessageFactory.create(body=b"<html>\x00")

    answer = operator.get(reverse("admin:channels_app_message_body", args=[message.pk]))

    assert answer.content == b"<html>\x00"
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"].startswith("attachment")


def test_lists_of_messages_count_and_scan_nothing(operator: Client) -> None:
    channel = MessageFactory.create().channel
    queries = ("", f"?channel={channel.pk}", "?state=Acknowledged", "?since=24", "?event_type=a.b",
               "?state=Finished", f"?channel={channel.pk}&state=Cancelled")  # fmt: skip
    for query in queries:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            console.look(operator, console.list_url(Message, query))
        about = [sql for sql in statements(captured) if '"channels_app_message"' in sql]
        assert about
        assert not [sql for sql in about if "COUNT(" in sql], query
        assert all("LIMIT" in sql for sql in about), query


@pytest.mark.trap("a state that never ends")
def test_a_message_whose_deliveries_ended_is_finished(operator: Client) -> None:
    delivery = DeliveryFactory.create(delivered=True)
    message = delivery.message
    lists = {state: console.list_url(Message, f"?state={state}") for state in Message.Shown.values}
    for state, changes in {
        "Finished": {},
        "Out-for-delivery": {"state": "queued", "due_at": timezone.now()},
    }.items():
        Delivery.objects.filter(pk=delivery.pk).update(**changes)
        assert state in console.look(operator, console.page_url(message)).split("Content")[0]
        found = [name for name, url in lists.items() if str(message) in console.look(operator, url)]
        assert found == [state]


def test_filters_select_matching_rows(operator: Client) -> None:
    mine = MessageFactory.create(event_type="order.paid")
    other = MessageFactory.create(cancelled=True)
    queries = {
        f"?channel={mine.channel_id}": True,
        f"?channel={other.channel_id}": False,
        "?state=Acknowledged": True,
        "?state=Cancelled": False,
        "?event_type=order.paid": True,
        "?event_type=order": False,
        "?since=1": True,
    }
    for query, there in queries.items():
        text = console.look(operator, console.list_url(Message, query))
        assert (str(mine) in text) is there, query


# -- Changes of configuration ----------------------------------------------------------------------


def test_a_channels_form_takes_lines_a_preset_and_a_reason(operator: Client) -> None:
    page = console.page_url(ChannelFactory.create(slug="orders"))
    values = console.values_of(operator, page)
    too_long = operator.post(page, values | {"paused": "on", "reason": "x" * 201})
    assert "at most 200 characters" in too_long.content.decode()
    changed = {"content_types": "text/*\ntext/csv", "default_retry": "fast", "reason": "a flood"}
    operator.post(page, values | changed)

    entry = audited("channel.update")
    assert entry.after == {"content_types": ["text/*", "text/csv"], "default_retry": "fast"}
    assert entry.reason == "a flood"
    assert console.look(operator, console.list_url(AuditEntry, "?q=channel:ord"))


PAST = {"expires_at_0": "2020-01-01", "expires_at_1": "1:00"}
REFUSED: list[tuple[type[Model], dict[str, Any], str]] = [
    (Channel, {"slug": "Not A Slug"}, "slug"),
    (Channel, {"content_types": "nonsense"}, "content_types"),
    (Channel, {"default_retry": "no-such-preset"}, "default_retry"),
    (Channel, {"default_retry": "[nonsense"}, "default_retry"),
    (Channel, {"slug": "taken"}, "slug"),
    (EventType, {"schema": '{"type": "nonsense"}'}, "schema"),
    (Consumer, {"url": "http://10.0.0.1/"}, "url"),
    (Consumer, {"max_pumps": 0}, "max_pumps"),
    (Consumer, {"client_id": "taken"}, "client_id"),
    (ApiKey, {"scopes": []}, "scopes"),
    (ApiKey, {"channels": "no-such-channel"}, "channels"),
    (ApiKey, PAST, "expires_at"),
    (ApiKey, {"producer": 1, "team": 1}, "__all__"),
    (Schedule, {"cron": "61 * * * *"}, "cron"),
    (Schedule, {"cron": ""}, "cron"),
    (Schedule, {"timezone": "Mars/Phobos"}, "timezone"),
    (Schedule, {"every_ms": "5", "cron": ""}, "every_ms"),
    (Schedule, {"event_type": "no spaces"}, "__all__"),
    (Schedule, {"headers": '{"webhook-id": "x"}'}, "__all__"),
]


@pytest.mark.parametrize(("model", "wrong", "field"), REFUSED)
def test_a_refused_value_is_reported_at_its_field_and_input_kept(
    operator: Client, model: type[Model], wrong: dict[str, Any], field: str
) -> None:
    channel = ConsumerFactory.create(channel__slug="taken", client_id="taken").channel
    ProducerFactory.create(pk=1)
    TeamFactory.create(pk=1)
    before = model._default_manager.count()
    valid = {"slug": "orders", "channel": channel.pk, "name": "order.paid", "client_id": "billing"}
    valid |= {"url": "http://127.0.0.1:9/hook", "scopes": ["publish"], "label": "kept"}
    valid |= {"cron": "0 9 * * *", "body": "x"}
    add = reverse(f"admin:channels_app_{model._meta.model_name}_add")
    form = console.values_of(operator, add) | valid | {"description": "kept"}

    answer: Any = operator.post(add, form | wrong)

    assert list(answer.context["adminform"].form.errors) == [field]
    assert "kept" in answer.content.decode()
    assert model._default_manager.count() == before


def test_event_types_are_deleted_and_audited(operator: Client) -> None:
    event_type, *others = EventTypeFactory.create_batch(3)
    delete = reverse("admin:channels_app_eventtype_delete", args=[event_type.pk])
    operator.post(delete, {"post": "yes"})
    assert audited("event_type.delete").actor == "user:olga"
    bulk = {"action": "delete_selected", "_selected_action": [it.pk for it in others]}
    operator.post(console.list_url(EventType), bulk | {"post": "yes"})
    assert AuditEntry.objects.filter(action="event_type.delete").count() == 3
    assert not EventType.objects.exists()


def test_a_consumers_secret_is_shown_once_and_its_masked_headers_are_kept(operator: Client) -> None:
    channel = ChannelFactory.create()
    add = reverse("admin:channels_app_consumer_add")
    values = console.values_of(operator, add) | {
        "channel": channel.pk,
        "client_id": "billing",
        "url": "http://127.0.0.1:9/hook",
        "headers": '{"X-Token": "s3cret"}',
        "rate_per_second": "5",
        "max_pumps": "",
    }

    answer = operator.post(add, values)

    text = answer.content.decode()
    assert text.count("whsec_") == 1
    assert "no-store" in answer["Cache-Control"]
    consumer = Consumer.objects.get()
    assert (consumer.rate_per_second, consumer.max_pumps) == (5, 1)
    page = console.page_url(consumer)
    shown = console.look(operator, page)
    assert "whsec_" not in shown
    assert "s3cret" not in shown
    assert console.told(operator) == []

    sealed = bytes(consumer.headers_sealed)
    values = console.values_of(operator, page)
    assert json.loads(values["headers"]) == {"X-Token": "********"}
    operator.post(page, values | {"description": "changed", "signing": ["v1a"]})
    consumer.refresh_from_db()
    assert (consumer.description, consumer.signing) == ("changed", ["v1a"])
    assert bytes(consumer.headers_sealed) == sealed


def test_retry_overrides_are_rows_of_a_consumers_form(operator: Client) -> None:
    stored = [
        {"event_types": ["hint.*", "stock.low"], "retry": "once", "max_attempts": None},
        {"event_types": ["*"], "retry": [1, 2], "max_attempts": 9},
    ]
    consumer = ConsumerFactory.create(retry_overrides=stored)
    page = console.page_url(consumer)
    values = console.values_of(operator, page)
    assert values["retry_overrides"] == [
        {"event_types": "hint.* stock.low", "retry": "once", "max_attempts": ""},
        {"event_types": "*", "retry": "[1, 2]", "max_attempts": "9"},
    ]
    assert console.look(operator, page).count('name="retry_overrides-event_types"') == 4

    def rows(*rows: tuple[str, str, str]) -> dict[str, list[str]]:
        parts = zip(*rows, strict=True)
        names = ("event_types", "retry", "max_attempts")
        return {
            f"retry_overrides-{name}": list(part) for name, part in zip(names, parts, strict=True)
        }

    kept = ("hint.* stock.low", "once", ""), ("", " ", ""), ("*", "[1, 2]", "9")
    operator.post(page, values | rows(*kept) | {"description": "changed"})
    consumer.refresh_from_db()
    assert (consumer.description, consumer.retry_overrides) == ("changed", stored)

    for wrong, sentence in (
        (("a..b", "once", ""), "Entry 2: event_types: Entry 1: A pattern is an event type"),
        (("b", "[1,", ""), "Entry 2: This is no JSON."),
        (("b", "", "many"), "Entry 2: max_attempts: A whole number is needed."),
        (("hint.x", "fast", ""), "Entry 2: hint.* of entry 1 matches hint.x first."),
    ):
        answer = operator.post(page, values | rows(kept[0], ("", "", ""), wrong))
        form = answer.context["adminform"].form
        assert form.errors["retry_overrides"][0].startswith(sentence)
        again = form["retry_overrides"].value()
        assert again[1] == dict(zip(("event_types", "retry", "max_attempts"), wrong, strict=True))
    operator.post(page, console.values_of(operator, page) | rows(("*", "5, 60 3600", "")))
    consumer.refresh_from_db()
    assert consumer.retry_overrides == [
        {"event_types": ["*"], "retry": [5, 60, 3600], "max_attempts": None}
    ]
    operator.post(page, console.values_of(operator, page) | rows(("", "", "")))
    consumer.refresh_from_db()
    assert consumer.retry_overrides == []


@pytest.mark.seed("S3-27", "S3-39")
def test_the_acknowledgement_mode_and_inbound_address_are_changed(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    page = console.page_url(consumer)
    values = console.values_of(operator, page)
    assert values["ack"] == ""
    assert f"/{consumer.pk}/renew/" not in console.look(operator, page)
    signature = {"preset": "meta-x-hub-256", "secret": "s3cret"}
    ack = {"mode": "callback", "correlation": {"preset": "whatsapp-cloud", "signature": signature}}

    answer = operator.post(page, values | {"ack": '{"mode": "sometimes"}'})
    assert "ack" in answer.context["adminform"].form.errors
    operator.post(page, values | {"ack": json.dumps(ack)})

    consumer.refresh_from_db()
    assert (consumer.ack or {})["mode"] == "callback"
    first = inbound_addresses.load(consumer)
    assert first is not None
    assert first.secret == "s3cret"
    shown = console.look(operator, page)
    assert first.token in shown
    assert "s3cret" not in shown
    operator.post(page, console.values_of(operator, page) | {"description": "changed"})
    consumer.refresh_from_db()
    assert (consumer.description, inbound_addresses.load(consumer)) == ("changed", first)
    renew = reverse("admin:channels_app_consumer_renew", args=[consumer.pk])
    operator.post(renew, {"_form_submitted": "True", "reason": "it leaked"})
    consumer.refresh_from_db()
    second = inbound_addresses.load(consumer)
    assert second is not None
    assert (second.secret, second.token == first.token) == ("s3cret", False)
    assert audited("consumer.renew_inbound").reason == "it leaked"
    operator.post(page, console.values_of(operator, page) | {"ack": ""})
    consumer.refresh_from_db()
    assert (consumer.ack, consumer.inbound_digest) == (None, None)


def test_settings_without_a_place_come_last_in_a_consumers_form(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = console.page_url(ConsumerFactory.create())
    values = console.values_of(operator, page)
    assert ">More<" not in console.look(operator, page)
    fieldsets: list[Any] = [
        (name, {"fields": [field for field in part["fields"] if field != "http_version"]})
        for name, part in ConsumerAdmin.fieldsets
    ]
    monkeypatch.setattr(ConsumerAdmin, "fieldsets", fieldsets)
    assert console.values_of(operator, page).keys() == values.keys()
    assert ">More<" in "".join(console.look(operator, page).split())


def test_pause_and_resume_ask_first_and_are_audited(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    pause = reverse("admin:channels_app_consumer_pause", args=[consumer.pk])

    assert "Pause this consumer?" in operator.get(pause).content.decode()
    consumer.refresh_from_db()
    assert consumer.state == "active"

    answer = operator.post(pause, {"_form_submitted": "True", "reason": "their wish"})
    assert answer["HX-Redirect"] == console.page_url(consumer)
    consumer.refresh_from_db()
    assert consumer.state == "paused"
    entry = audited("consumer.pause")
    assert (entry.actor, entry.reason) == ("user:olga", "their wish")

    resume = reverse("admin:channels_app_consumer_resume", args=[consumer.pk])
    operator.post(resume, {"_form_submitted": "True"})
    consumer.refresh_from_db()
    assert consumer.state == "active"


def test_buttons_depend_on_the_state(operator: Client) -> None:
    rows = {
        state: console.look(operator, console.page_url(ConsumerFactory.create(state=state)))
        for state in ("active", "paused", "disabled", "retired")
    }
    names = ("pause", "resume", "rotate", "retire")

    offered = {
        state: [name for name in names if f"/{name}/" in text] for state, text in rows.items()
    }

    assert offered == {
        "active": ["pause", "rotate", "retire"],
        "paused": ["resume", "rotate", "retire"],
        "disabled": ["resume", "rotate", "retire"],
        "retired": [],
    }


def test_several_consumers_are_paused_at_once(operator: Client) -> None:
    active, disabled = ConsumerFactory.create(), ConsumerFactory.create(disabled=True)

    bulk = {"action": "pause_selected", "_selected_action": [active.pk, disabled.pk]}
    bulk |= {"reason": "a long night"}
    answer = operator.post(console.list_url(Consumer), bulk, follow=True)

    active.refresh_from_db()
    assert (active.state, active.state_reason) == ("paused", "a long night")
    assert audited("consumer.pause").reason == "a long night"
    assert "disabled already" in answer.content.decode()


def test_a_new_secret_is_shown_only_in_the_dialog(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    rotate = reverse("admin:channels_app_consumer_rotate", args=[consumer.pk])

    answer = operator.post(rotate, {"_form_submitted": "True", "overlap_s": "60"})

    assert answer.content.decode().count("whsec_") == 1
    assert answer["HX-Retarget"] == "#dialog"
    assert "no-store" in answer["Cache-Control"]
    assert ConsumerSecret.objects.filter(expires_at=None).count() == 1
    assert console.told(operator) == []


# -- Keys ------------------------------------------------------------------------------------------


def test_a_key_is_revoked_with_a_reason_and_never_edited(operator: Client) -> None:
    key = ApiKeyFactory.create()
    revoke = reverse("admin:channels_app_apikey_revoke", args=[key.pk])
    assert revoke in console.look(operator, console.page_url(key))
    operator.post(revoke, {"_form_submitted": "True", "reason": "leaked"})

    assert audited("key.revoke").reason == "leaked"
    assert operator.post(console.page_url(key), {"label": "x"}).status_code == 403
    assert revoke not in console.look(operator, console.page_url(key))


# -- Teams -----------------------------------------------------------------------------------------


def test_teams_and_memberships_are_audited(operator: Client) -> None:
    form = {"slug": "a", "name": "A"} | console.inline("invitations")
    operator.post(reverse("admin:channels_app_team_add"), form | console.inline("memberships"))
    page = console.page_url(Team.objects.get())
    row: dict[str, Any] = {"user": User.objects.get(username="olga").pk, "role": "owner"}
    operator.post(page, form | console.inline("memberships", row))
    row |= {"id": Membership.objects.get(role="owner").pk, "role": "viewer"}
    operator.post(page, form | console.inline("memberships", row, known=1))
    assert Membership.objects.get().role == "viewer"
    operator.post(page, form | console.inline("memberships", row | {"DELETE": "on"}, known=1))
    assert not Membership.objects.exists()

    assert list(AuditEntry.objects.order_by("id").values_list("action", "target")) == [
        ("team.create", "team:a"),
        ("membership.create", "membership:a/olga"),
        ("membership.update", "membership:a/olga"),
        ("membership.delete", "membership:a/olga"),
    ]
    assert set(AuditEntry.objects.values_list("team_id", flat=True)) == {Team.objects.get().pk}
    assert audited("membership.update").before == {"role": "owner"}
    assert audited("membership.update").after == {"role": "viewer"}
    assert audited("membership.delete").before == {"user": "olga", "role": "viewer"}


def test_a_team_is_found_by_its_people_and_shows_its_invitations(operator: Client) -> None:
    console.fill()
    (team,) = Team.objects.filter(memberships__user__username="mia")
    TeamFactory.create()

    for term in ("mia", "nora@example.com"):
        found = operator.get(console.list_url(Team, f"?q={term}")).context["cl"]
        assert list(found.result_list) == [team]
    assert "nora@example.com" in console.look(operator, console.page_url(team))
    mia = User.objects.get(username="mia")
    assert team.slug in console.look(operator, console.page_url(mia))
    client = console.staff("view_team")
    assert not client.get(console.list_url(Team, "?q=mia")).context["cl"].result_list
    shown = console.look(client, console.page_url(team))
    assert "nora@example.com" not in shown
    assert "mia" not in shown


# -- The page layout -------------------------------------------------------------------------------


def test_the_search_leads_from_an_id_to_its_page(operator: Client) -> None:
    consumer = ConsumerFactory.create(client_id="billing")
    number = ids.to_public(ids.MESSAGE, MessageFactory.create().pk)

    for term, page in ((number, "message"), ("bill", f"consumer/{consumer.pk}")):
        answer = operator.get(f"/admin/search/?extended=1&s={term}")
        assert f"/admin/channels_app/{page}" in answer.content.decode()


@pytest.mark.parametrize(
    ("model", "place"), [(Message, 100_000), (AuditEntry, 100_000), (Delivery, 401)]
)
def test_a_list_ends_at_its_row_limit(operator: Client, model: type[Model], place: int) -> None:
    assert operator.get(console.list_url(model, f"?p={place}")).status_code == 302


def test_json_fields_are_formatted(operator: Client) -> None:
    ack = {"mode": "callback", "timeout_ms": 2000, "on_timeout": "proceed", "correlation": None}
    consumer = ConsumerFactory.create(ack=ack)
    form = operator.get(console.page_url(consumer)).context["adminform"].form
    assert '{\n  "mode": "callback",\n' in form["ack"].value()
    assert form["headers"].value() == "{}"

    added = operator.get(reverse("admin:channels_app_consumer_add")).context["adminform"].form
    assert (added["ack"].value(), added["headers"].value()) == ("", "")
    event = EventTypeFactory.create(schema=None, example='"text"')
    shown = operator.get(console.page_url(event)).context["adminform"].form
    assert shown["schema"].value() == ""
    assert json.loads(shown["example"].value()) == '"text"'


def test_forms_explain_their_fields_as_the_api_does(operator: Client) -> None:
    page = console.look(operator, reverse("admin:channels_app_consumer_add"))
    for name in ("max_pumps", "lapsed_leases", "dead_letter_channel", "max_attempts"):
        assert str(ConsumerSerializer().fields[name].help_text) in page
    for name in ("consumer", "channel", "producer"):
        page = console.look(operator, reverse(f"admin:channels_app_{name}_add"))
        assert "PUT without" not in page
