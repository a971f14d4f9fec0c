"""Webhooks in the portal: from the catalogue to the first delivery, and possible errors."""

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from channels_app.models import AuditEntry, Channel, Consumer, Team
from delivery.core.signing import verify
from delivery.models import ConsumerHealth, Delivery, HealthStatus
from delivery.queue import fanout
from delivery.transport import test_delivery
from tests.support import people
from tests.support.factories import (
    AttemptFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    EventTypeFactory,
    TeamFactory,
    secret_of,
)
from tests.support.pumping import all_finished, publish, pump_until, pumping
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]{20,}")
ROOT = "/portal/acme/webhooks"


@pytest.fixture
def owner(team: Team) -> Client:
    return people.person("olga", team, "owner")


@pytest.fixture
def orders() -> Channel:
    """An external channel with one described event type."""
    channel = ChannelFactory.create(slug="orders", external=True, description="All orders.")
    EventTypeFactory.create(
        channel=channel,
        name="order.created",
        description="Somebody bought something.",
        schema={"type": "object", "required": ["id"]},
        example={"id": 7, "customer": "Ada <b>Löwe</b>"},
    )
    return channel


def text(answer: Any) -> str:
    return str(answer.content.decode())


def test_from_the_catalogue_to_the_first_delivery(
    owner: Client, orders: Channel, receiver: Receiver
) -> None:
    assert "Choose a channel" in text(owner.get(f"{ROOT}/"))
    assert "All orders." in text(owner.get(f"{ROOT}/-/catalogue/"))
    shown = text(owner.get(f"{ROOT}/-/catalogue/orders/"))
    assert "Somebody bought something." in shown
    assert "Ada &lt;b&gt;Löwe&lt;/b&gt;" in shown
    assert "required" in shown

    url = receiver.url("/hook")
    form = {"client_id": "billing", "url": url, "types": ["order.created"], "retry": "fast"}
    tried = text(owner.post(f"{ROOT}/-/new/orders/", form | {"do": "try"}))
    assert "The address was tried" in tried
    assert 'value="billing"' in tried
    assert not Consumer.objects.exists()
    (sample,) = receiver.wait_for(1)
    assert sample.header("Hookstation-Test") == "true"

    made = owner.post(f"{ROOT}/-/new/orders/", form | {"do": "register"})
    assert made.status_code == 201
    assert "no-store" in made["Cache-Control"]
    secret = set(SECRET.findall(text(made)))
    assert len(secret) == 1, "one secret, in the box and in each snippet"
    (secret_text,) = secret
    webhook = Consumer.objects.get()
    assert (webhook.team_id, webhook.event_types, webhook.retry) == (
        Team.objects.get().id,
        ["order.created"],
        "fast",
    )
    entry = AuditEntry.objects.get(action="consumer.create")
    assert entry.actor == "user:olga"

    page = text(owner.post(f"{ROOT}/orders/billing/test/"))
    assert "Your response" in page
    assert "delivered" in page
    tested = receiver.wait_for(2)[1]
    verify(secret_text, dict(tested.headers), tested.body, now=_signed_at(tested))
    assert b"Ada" in tested.body

    assert "Nothing was sent here yet" in text(owner.get(f"{ROOT}/orders/billing/"))
    publish(orders, b'{"id": 1}', event_type="order.created", content_type="application/json")
    with pumping() as pump:
        pump_until(pump, all_finished)
    row = Delivery.objects.get()
    listed = text(owner.get(f"{ROOT}/orders/billing/"))
    assert str(row) in listed
    assert SECRET.search(listed) is None
    detail = text(owner.get(f"{ROOT}/orders/billing/deliveries/{row}/"))
    assert "Attempt 1: delivered" in detail
    assert "webhook-id" in detail
    assert "curl -isSg --path-as-is" in detail
    assert SECRET.search(detail) is None


def _signed_at(request: Any) -> float:
    return float(request.header("webhook-timestamp"))


def test_invalid_settings_are_refused_and_input_kept(owner: Client, orders: Channel) -> None:
    form = {
        "client_id": "billing",
        "url": "http://127.0.0.1:9/hook",
        "patterns": "stock.*",
        "description": "Books what was sold.",
        "max_attempts": "7",
    }
    override = {
        "retry_overrides-event_types": ["hint.*", ""],
        "retry_overrides-retry": ["sometimes", ""],
        "retry_overrides-max_attempts": ["", ""],
    }
    changes: list[tuple[dict[str, Any], str]] = [
        ({"url": "http://10.0.0.7/hook"}, "10.0.0.7"),
        ({"url": "ftp://example.com/"}, "http"),
        ({"url": ""}, "required"),
        ({"client_id": "Not A Slug"}, "lower-case"),
        ({"patterns": "order..created"}, "order..created"),
        ({"rate_per_second": "-1"}, "greater than or equal"),
        ({"headers": "no colon here"}, "no colon"),
        ({"headers": "webhook-id: mine"}, "webhook-id"),
        ({"retry": "sometimes"}, "sometimes"),
        ({"types": ["order.unknown"]}, "order.unknown"),
        (override, "Entry 1: retry: There is no retry preset &#x27;sometimes&#x27;"),
    ]
    for changed, said in changes:
        answer = owner.post(f"{ROOT}/-/new/orders/", form | changed)
        page = text(answer)
        assert answer.status_code == 422
        assert said in page
        for value in ({"d": "Books what was sold.", "m": 'value="7"'} | changed).values():
            kept = value if isinstance(value, str) else ""
            assert kept in page.replace("&#x27;", "'")
    assert not Consumer.objects.exists()


def test_a_taken_name_is_reported(owner: Client, orders: Channel) -> None:
    ConsumerFactory.create(channel=orders, client_id="theirs", team=TeamFactory.create())
    ConsumerFactory.create(channel=orders, client_id="ours", team=Team.objects.get(slug="acme"))
    before = list(Consumer.objects.order_by("id").values_list("url", "version"))

    for name in ("theirs", "ours"):
        form = {"client_id": name, "url": "http://127.0.0.1:9/other"}
        answer = owner.post(f"{ROOT}/-/new/orders/", form)
        assert answer.status_code == 409
        assert "taken" in text(answer)

    assert list(Consumer.objects.order_by("id").values_list("url", "version")) == before


def test_a_url_is_checked_while_typing(owner: Client) -> None:
    def check(url: str) -> str:
        return text(owner.get(f"{ROOT}/-/check/", {"url": url}))

    assert "The address is allowed." in check("https://example.com/hook")
    assert "others on the network can read" in check("http://example.com/hook")
    assert "bad-text" in check("http://192.168.1.1/")
    assert "bad-text" in check("javascript:alert(1)")
    assert "<script>" not in check("<script>")


def test_a_test_of_a_forbidden_url_is_refused(
    owner: Client, orders: Channel, receiver: Receiver
) -> None:
    answer = owner.post(f"{ROOT}/-/new/orders/", {"url": "http://10.0.0.7/", "do": "try"})
    assert "10.0.0.7" in text(answer)
    assert "was tried" not in text(answer)

    refused = owner.post(f"{ROOT}/-/new/orders/", {"url": receiver.url("/status/401"), "do": "try"})
    assert "This refusal is expected" in text(refused)


def test_only_external_channels_and_own_webhooks_are_listed(
    owner: Client, orders: Channel, team: Team
) -> None:
    inside = ChannelFactory.create(slug="inside")
    other = TeamFactory.create()
    ConsumerFactory.create(channel=inside, client_id="mine", team=team)
    theirs = ConsumerFactory.create(channel=orders, client_id="theirs", team=other)
    ConsumerFactory.create(channel=orders, client_id="nobodys")
    ConsumerFactory.create(channel=orders, client_id="gone", team=team, retired=True)
    delivery = _delivery(theirs)

    for path in ("", "-/catalogue/", "-/catalogue/orders/"):
        page = text(owner.get(f"{ROOT}/{path}"))
        assert "inside" not in page
        assert "theirs" not in page
    for path in (
        *("-/catalogue/inside/", "-/new/inside/", "inside/mine/", "inside/mine/settings/"),
        *("orders/theirs/", "orders/nobodys/", "orders/gone/", "orders/missing/"),
        f"orders/theirs/deliveries/{delivery}/",
    ):
        assert owner.get(f"{ROOT}/{path}").status_code == 404, path


def _delivery(consumer: Consumer) -> Delivery:
    publish(consumer.channel, b"{}")
    fanout.fan_out(100, slot=0)
    return Delivery.objects.get(consumer=consumer)


def test_a_viewer_sees_no_signature_that_a_consumer_would_accept(
    orders: Channel, team: Team, receiver: Receiver
) -> None:
    webhook = ConsumerFactory.create(
        channel=orders, client_id="mine", team=team, url=receiver.url("/hook")
    )
    row = _delivery(webhook)
    viewer = people.person("victor", team, "viewer")
    detail = text(viewer.get(f"{ROOT}/orders/mine/deliveries/{row}/"))
    assert re.search(r"webhook-signature: v1,[\w+/]{6}\.\.\.", detail)
    viewer.get(f"{ROOT}/orders/mine/test/")
    assert receiver.requests() == []


def test_unchanged_settings_are_kept(owner: Client, orders: Channel, team: Team) -> None:
    page = f"{ROOT}/orders/mine/settings/"
    owner.post(
        f"{ROOT}/-/new/orders/",
        {
            "client_id": "mine",
            "url": "http://127.0.0.1:9/a",
            "types": ["order.created"],
            "patterns": "stock.* audit",
            "headers": "Authorization: Bearer hush-hush\nX-Team: acme",
            "rate_per_second": "2.5",
        },
    )
    webhook = Consumer.objects.get()
    Consumer.objects.filter(id=webhook.id).update(retry=[1, 2, 3], timeout_ms=5000)
    shown = text(owner.get(page))
    assert "Bearer hush-hush" not in shown
    assert "Authorization: ********" in shown
    form = {
        "url": "http://127.0.0.1:9/b",
        "types": ["order.created"],
        "patterns": "stock.* audit",
        "headers": "Authorization: ********\nX-Team: acme2",
        "rate_per_second": "2.5",
        "retry": "custom",
        "retry_overrides-event_types": ["", "stock.*, audit", ""],
        "retry_overrides-retry": ["", "1, 10", ""],
        "retry_overrides-max_attempts": ["", "7", ""],
        "version": webhook.version,
    }

    answer = owner.post(page, form)

    assert answer.status_code == 302
    webhook.refresh_from_db()
    assert (webhook.url, webhook.retry, webhook.timeout_ms) == (
        "http://127.0.0.1:9/b",
        [1, 2, 3],
        5000,
    )
    assert webhook.event_types == ["order.created", "stock.*", "audit"]
    assert webhook.retry_overrides == [
        {"event_types": ["stock.*", "audit"], "retry": [1, 10], "max_attempts": 7}
    ]
    assert 'value="[1, 10]"' in text(owner.get(page))


def test_a_new_secret_is_shown_once_and_both_sign_for_a_while(
    owner: Client, orders: Channel, team: Team, receiver: Receiver
) -> None:
    webhook = ConsumerFactory.create(
        channel=orders, client_id="mine", team=team, url=receiver.url("/hook")
    )
    address = f"{ROOT}/orders/mine/secret/"

    answer = owner.post(address, {"overlap_s": "3600", "reason": "yearly"})

    (new,) = set(SECRET.findall(text(answer)))
    assert new != secret_of(webhook)
    assert "signs until" in text(answer)
    assert SECRET.search(text(owner.get(address))) is None
    owner.post(f"{ROOT}/orders/mine/test/")
    (request,) = receiver.wait_for(1)
    for secret in (new, secret_of(webhook)):
        verify(secret, dict(request.headers), request.body, now=_signed_at(request))
    entry = AuditEntry.objects.get(action="consumer.rotate_secret")
    assert (entry.actor, entry.reason) == ("user:olga", "yearly")


def test_pause_resume_and_retire(owner: Client, orders: Channel, team: Team) -> None:
    ConsumerFactory.create(channel=orders, client_id="mine", team=team)
    address = f"{ROOT}/orders/mine/"
    refused = owner.post(f"{address}retire/", {"reason": "x" * 201}, follow=True)
    assert "at most 200 characters" in text(refused)
    for action, state, said in (
        ("pause", "paused", "New messages wait"),
        ("resume", "active", "Waiting messages are being sent"),
        ("retire", "retired", "It gets no more messages"),
    ):
        answer = owner.post(f"{address}{action}/", {"reason": f"{action} it"}, follow=True)
        assert said in text(answer)
        assert Consumer.objects.get().state == state
        entry = AuditEntry.objects.get(action=f"consumer.{action}")
        assert (entry.actor, entry.reason) == ("user:olga", f"{action} it")
    assert owner.get(address).status_code == 404


@pytest.mark.seed("S3-32")
def test_a_hot_key_is_named(owner: Client, orders: Channel, team: Team) -> None:
    webhook = ConsumerFactory.create(channel=orders, client_id="billing", team=team)
    page = f"{ROOT}/orders/billing/"
    assert "ordering key" not in text(owner.get(page))
    now = webhook.created_at
    hot: dict[str, Any] = {"hot_count": 1, "hot_key": "room-<7>", "hot_waiting": 1234}
    HealthStatus.objects.create(consumer=webhook, since=now, looked_at=now, **hot)
    shown = text(owner.get(page))
    assert "1234 messages wait for an earlier message with the ordering key" in shown
    assert "room-&lt;7&gt;" in shown


@pytest.mark.trap("a body or response executed as a page")
def test_responses_are_shown_as_text_and_never_executed(
    owner: Client, orders: Channel, team: Team, receiver: Receiver
) -> None:
    ConsumerFactory.create(channel=orders, client_id="mine", team=team, url=receiver.url("/hook"))
    for reply, said in (
        (Reply(500, b"<script>alert(1)</script>"), "&lt;script&gt;alert(1)"),
        (Reply(200, b"\xff\xfe\x00binary"), "ff fe 00"),
        (Reply(404), "the path does not exist"),
        (Reply(reset=True), "connection reset"),
    ):
        receiver.script("/hook", [reply])
        page = text(owner.post(f"{ROOT}/orders/mine/test/"))
        assert said in page, reply
        assert "<script>alert" not in page


def test_url_checks_and_tests_do_not_queue(
    owner: Client, orders: Channel, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    ConsumerFactory.create(channel=orders, team=team, client_id="billing")
    monkeypatch.setattr(test_delivery, "MAX_CONCURRENT", 0)
    form = {"do": "try", "client_id": "other", "url": "http://127.0.0.1:9/hook"}
    tried = owner.post(f"{ROOT}/-/new/orders/", form)
    tested = owner.post(f"{ROOT}/orders/billing/test/")
    for answer in (tried, tested):
        assert answer.status_code == 429
        assert "try again in a moment" in text(answer)
    assert 'value="other"' in text(tried)
    assert "http://127.0.0.1:9/hook" in text(tried)


@pytest.mark.trap("a page that shows internal objects")
def test_pages_of_a_webhook_without_responses_say_so(
    owner: Client, team: Team, orders: Channel
) -> None:
    webhook = ConsumerFactory.create(channel=orders, team=team, client_id="billing")
    delivery = DeliveryFactory.create(consumer=webhook, dead=True, outcome="connection_refused")
    AttemptFactory.create(delivery=delivery, number=1, outcome="connection_refused")
    now = timezone.now()
    ConsumerHealth.objects.create(
        consumer=webhook,
        circuit="closed",
        consecutive_failures=3,
        failing_since=now,
        last_failure_at=now,
        last_outcome="connection_refused",
    )
    page = text(owner.get(f"{ROOT}/orders/billing/deliveries/{delivery}/"))
    assert "ResponseView" not in page
    assert "The last 3 attempts failed (connection refused)" in page
    assert "Response to the last attempt" in page
    for path in ("/portal/acme/", f"{ROOT}/", f"{ROOT}/orders/billing/"):
        assert "failing" in text(owner.get(path))
    assert "None is failing" not in text(owner.get("/portal/acme/"))


@pytest.mark.trap("a page that shows internal objects")
def test_health_without_an_attempt_counts_none(owner: Client, team: Team, orders: Channel) -> None:
    webhook = ConsumerFactory.create(channel=orders, team=team, client_id="billing")
    DeliveryFactory.create(consumer=webhook)
    page = text(owner.get(f"{ROOT}/orders/billing/health/"))
    assert "0 of 0" not in page
    assert "no attempt was made yet" in page
