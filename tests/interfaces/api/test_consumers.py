"""Consumers: PUT at each start is one registration, secrets are shown once, teams are isolated."""

import json
import re
import threading

import pytest
from django.db import connection

from channels_app.core import encryption
from channels_app.core.values import MASK
from channels_app.database import clock
from channels_app.models import AuditEntry, Channel, Consumer, ConsumerSecret
from channels_app.registry import data_encryption
from delivery.models import ConsumerHealth
from tests.support import console
from tests.support.api import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory, ConsumerFactory, TeamFactory

CHANNEL = "orders"
URL = f"channels/{CHANNEL}/consumers/billing"
HOOK = "http://127.0.0.1:9/hook"


@pytest.fixture(autouse=True)
def _channel(db: None) -> None:
    ChannelFactory.create(slug=CHANNEL)


@pytest.fixture
def service() -> Api:
    """A client with the key of a service without a team."""
    return Api(ApiKeyFactory.create(scopes=["register", "read"]))


@pytest.mark.trap("missing authentication and readable secrets")
@pytest.mark.seed("S1-15")
def test_put_creates_a_secret_which_later_changes_keep(service: Api) -> None:
    body = {"url": HOOK, "max_attempts": 3, "rate_limit": {"per_second": 5}}
    text = service.put(URL, body).json["secret"]
    row = ConsumerSecret.objects.get()
    opened = data_encryption.decrypt_for_consumer(
        row.consumer.channel_id, "billing", bytes(row.sealed)
    )
    assert opened == encryption.decode_secret(text)
    assert "secret" not in service.put(URL, body).json
    assert text not in json.dumps(list(AuditEntry.objects.values("before", "after")))

    changed = service.patch(URL, {"retry": [1, 2], "rate_limit": {"per_second": 2, "burst": 4}})
    assert changed.json["rate_limit"] == {"per_second": 2.0, "burst": 4}
    assert changed.json["effective"]["gives_up_after_s"] == 3.0
    replaced = service.put(URL, {"url": HOOK + "2"}).json
    assert (replaced["retry"], replaced["rate_limit"]) == (None, None)
    assert replaced["effective"]["timeout_ms"] == 15_000
    assert ConsumerSecret.objects.get() == row


def test_retry_overrides_are_shown_and_audited(service: Api) -> None:
    overrides = [
        {"event_types": ["hint.*"], "retry": "once"},
        {"event_types": ["invoice.*", "order.paid"], "max_attempts": 3},
    ]
    service.put(URL, {"url": HOOK, "retry": [1, 2], "retry_overrides": overrides})
    shown = service.get(URL).json
    stored: list[dict[str, object]] = [
        {"event_types": ["hint.*"], "retry": "once", "max_attempts": None},
        {"event_types": ["invoice.*", "order.paid"], "retry": None, "max_attempts": 3},
    ]
    assert shown["retry_overrides"] == stored
    assert shown["effective"]["retry_overrides"] == [
        stored[0] | {"max_attempts": 1, "gives_up_after_s": 0.0},
        stored[1] | {"retry": [1, 2], "gives_up_after_s": 3.0},
    ]
    same = service.patch(URL, {"retry_overrides": overrides})
    assert same.json["version"] == shown["version"], "the same said again is no change"
    assert service.put(URL, {"url": HOOK}).json["retry_overrides"] == []
    entry = AuditEntry.objects.order_by("-id")[0]
    changes = entry.before or {}, entry.after or {}
    assert [change["retry_overrides"] for change in changes] == [stored, []]


@pytest.mark.django_db(transaction=True)
@pytest.mark.seed("S1-15")
def test_twenty_puts_at_once_make_one_consumer() -> None:
    key = ApiKeyFactory.create(scopes=["register"])
    answers: list[int] = []

    def register() -> None:
        answers.append(Api(key).put(URL, {"url": HOOK}).status)
        connection.close()

    threads = [threading.Thread(target=register) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 19 + [201]
    assert Consumer.objects.count() == 1
    assert ConsumerSecret.objects.count() == 1


def test_headers_are_sealed_masked_and_kept_by_their_mask(service: Api) -> None:
    token = "Bearer top-secret-token"
    service.put(URL, {"url": HOOK, "headers": {"Authorization": token, "X-Team": "a"}})
    shown = service.get(URL).json["headers"]
    assert shown == {"Authorization": MASK, "X-Team": MASK}
    consumer = Consumer.objects.get()
    assert token.encode() not in bytes(consumer.headers_sealed)
    same = service.put(URL, {"url": HOOK, "headers": shown})
    assert same.etag == f'"{consumer.version}"'
    changed = service.patch(URL, {"headers": {"authorization": MASK, "X-Team": "b"}})
    assert changed.etag != same.etag
    consumer.refresh_from_db()
    opened = data_encryption.decrypt_for_consumer(
        consumer.channel_id, "billing", bytes(consumer.headers_sealed)
    )
    assert json.loads(opened) == {"authorization": token, "X-Team": "b"}
    assert token not in json.dumps(list(AuditEntry.objects.values("before", "after")))
    lost = service.patch(URL, {"headers": {"X-New": MASK}})
    assert (lost.status, lost.json["field"]) == (422, "headers")
    assert service.patch(URL, {"headers": {}}).json["headers"] == {}


def test_v1a_creates_a_key_pair_with_a_visible_public_key(service: Api) -> None:
    created = service.put(URL, {"url": HOOK, "signing": ["v1a"]}).json
    assert created["signing"] == ["v1", "v1a"]
    (pair,) = [key for key in created["signing_keys"] if key["scheme"] == "v1a"]
    assert pair["public_key"].startswith("whpk_")
    assert service.get(URL).json["signing_keys"] == created["signing_keys"]
    assert service.put(URL, {"url": HOOK, "signing": ["v1", "v1a"]}).status == 200
    assert ConsumerSecret.objects.filter(scheme="v1a").count() == 1
    service.patch(URL, {"signing": []})
    assert not ConsumerSecret.objects.filter(scheme="v1a").exists()


@pytest.mark.trap("a consumer that cannot be deleted")
@pytest.mark.seed("S0-12")
def test_a_retired_consumer_is_gone_and_comes_back_with_a_new_secret(service: Api) -> None:
    first = service.put(URL, {"url": HOOK, "headers": {"X-A": "1"}}).json["secret"]
    row = Consumer.objects.get()
    assert service.delete(URL).status == 204
    assert service.get(URL).status == 404
    assert service.delete(URL).status == 404
    assert service.patch(URL, {"url": HOOK}).status == 404
    assert service.get("channels/orders/consumers").json["items"] == []
    (gone,) = service.get("channels/orders/consumers?state=retired").json["items"]
    assert gone["client_id"] == "billing"
    back = service.put(URL, {"url": HOOK})
    assert back.status == 201
    assert back.json["secret"] != first
    assert back.json["headers"] == {}
    assert (back.json["state"], Consumer.objects.get().id) == ("active", row.id)
    assert ConsumerSecret.objects.count() == 1


@pytest.mark.seed("S0-76")
def test_pause_and_resume(service: Api) -> None:
    service.put(URL, {"url": HOOK})
    paused = service.post(f"{URL}/pause")
    assert (paused.status, paused.json["state"]) == (200, "paused")
    assert service.post(f"{URL}/pause").etag == paused.etag
    assert service.put(URL, {"url": HOOK}).json["state"] == "paused"
    assert service.post(f"{URL}/resume").json["state"] == "active"
    assert [entry.action for entry in AuditEntry.objects.order_by("id")] == [
        "consumer.create",
        "consumer.pause",
        "consumer.resume",
    ]


def test_a_disabled_consumer_is_resumed_and_not_paused(service: Api) -> None:
    ConsumerFactory.create(channel__slug="other", client_id="broken", disabled=True)
    url = "channels/other/consumers/broken"
    refused = service.post(f"{url}/pause")
    assert (refused.status, refused.json["code"]) == (409, "consumer_disabled")
    assert service.post(f"{url}/resume").json["state"] == "active"


def test_rotating_lets_old_and_new_secrets_overlap(service: Api) -> None:
    first = service.put(URL, {"url": HOOK, "signing": ["v1a"]})
    rotated = service.post(f"{URL}/secrets", {"overlap_s": 60})
    assert rotated.status == 201
    assert rotated.json["secret"] != first.json["secret"]
    assert rotated.etag != first.etag
    keys = rotated.json["signing_keys"]
    assert [(key["scheme"], key["expires_at"] is None) for key in keys] == [
        ("v1", False),
        ("v1a", False),
        ("v1", True),
        ("v1a", True),
    ]
    service.post(f"{URL}/secrets", {"overlap_s": 0})
    live = service.post(f"{URL}/secrets").json["signing_keys"]
    assert len(live) == 4
    assert ConsumerSecret.objects.count() == 4


def test_repeated_rotation_limits_the_number_of_signatures(service: Api) -> None:
    service.put(URL, {"url": HOOK})
    for value in (-1, True, 1.5, "60", 31 * 86_400, None, 10**30):
        answer = service.post(f"{URL}/secrets", {"overlap_s": value})
        assert (answer.status, answer.json["field"]) == (422, "overlap_s")
    assert ConsumerSecret.objects.count() == 1
    for _ in range(10):
        assert service.post(f"{URL}/secrets").status == 201
    assert ConsumerSecret.objects.count() == 10


@pytest.mark.trap("a page that shows internal objects")
def test_the_api_shows_the_same_health_as_console_and_portal(service: Api) -> None:
    consumer = ConsumerFactory.create(channel=Channel.objects.get(slug=CHANNEL), client_id="x")
    operator = console.operator()

    def told() -> tuple[str, str, str]:
        one = service.get(f"channels/{CHANNEL}/consumers/x").json["health"]
        (listed,) = service.get(f"channels/{CHANNEL}/consumers").json["items"]
        page = console.look(operator, console.list_url(Consumer))
        labels = re.findall(r'hs-label hs-\w+">([^<]+)<', page)
        return one, listed["health"], labels[1]  # after the label of its state

    assert told() == ("untried", "untried", "nothing sent yet")
    now = clock.now()
    health = ConsumerHealth.objects.create(consumer=consumer, last_failure_at=now)
    assert told() == ("failing", "failing", "failing")
    health.last_success_at = now
    health.save()
    assert told() == ("healthy", "healthy", "healthy")
    Consumer.objects.filter(pk=consumer.pk).update(state="disabled")
    assert told() == ("disabled", "disabled", "disabled")


def test_a_health_change_invalidates_the_etag(service: Api) -> None:
    consumer = ConsumerFactory.create(channel=Channel.objects.get(slug=CHANNEL), client_id="x")
    url = f"channels/{CHANNEL}/consumers/x"
    seen = service.get(url).etag
    assert service.get(url, If_None_Match=seen).status == 304

    ConsumerHealth.objects.create(consumer=consumer, last_failure_at=clock.now())

    answer = service.get(url, If_None_Match=seen)
    assert (answer.status, answer.json["health"]) == (200, "failing")
    # A write compares the version, which has not changed.
    assert service.patch(url, {"description": "mine"}, If_Match=seen).status == 200


def test_the_list_holds_the_channels_own(service: Api) -> None:
    ConsumerFactory.create(channel__slug="many", client_id="a")
    service.put(URL, {"url": HOOK})
    (item,) = service.get("channels/many/consumers").json["items"]
    assert item["client_id"] == "a"
    assert service.get("channels/nowhere/consumers").status == 404
    bad = service.get("channels/many/consumers?state=asleep")
    assert (bad.status, bad.json["field"]) == (422, "state")


def test_a_push_consumer_needs_an_address_and_a_pull_consumer_has_none(service: Api) -> None:
    for refused in ({}, {"mode": "pull", "url": HOOK}):
        assert service.put(URL, refused).json["field"] == "url"
    pull = service.put(URL, {"mode": "pull"})
    assert (pull.status, pull.json["url"]) == (201, "")
    assert service.patch(URL, {"mode": "push"}).json["field"] == "url"
    assert service.patch(URL, {"mode": "push", "url": HOOK}).json["mode"] == "push"
    assert service.patch(URL, {"mode": "pull"}).json["url"] == ""


def test_a_team_registers_for_itself_only(admin: Api) -> None:
    ours, theirs = TeamFactory.create(), TeamFactory.create()
    ChannelFactory.create(slug="shared", external=True)
    url = "channels/shared/consumers/billing"
    owner = Api(ApiKeyFactory.create(team=ours, scopes=["register"]))
    refused = owner.put(url, {"url": HOOK, "team": theirs.slug})
    assert (refused.status, refused.json["field"]) == (422, "team")
    assert owner.put(url, {"url": HOOK, "team": ours.slug}).status == 201
    assert owner.patch(url, {"team": None}).status == 422
    moved = admin.patch(url, {"team": theirs.slug})
    assert moved.json["team"] == theirs.slug
    assert owner.put(url, {"url": HOOK}).status == 404
    assert admin.put(url, {"url": HOOK}).json["team"] == theirs.slug
