"""Callbacks of a provider that knows nothing of our tokens, over real HTTP (S3-39)."""

import hmac
import json
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app.core.values import MASK
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, Message
from channels_app.registry import consumers, inbound_addresses
from channels_app.registry.cache import config_cache
from delivery import metrics
from delivery.acks import callbacks, correlations
from delivery.core import acks
from delivery.core.acks import ProviderStatus, correlation_id
from delivery.core.lifecycle import ClaimedDelivery
from delivery.core.outcome import Outcome
from delivery.models import Correlation, Delivery
from delivery.queue import fanout, settle
from delivery.queue.settle import Result
from tests.support import pumping
from tests.support.api import Answer, Api
from tests.support.factories import ApiKeyFactory
from tests.support.ordering import check, end, say, take
from tests.support.principals import acting
from tests.support.pumping import make_channel, pump_until
from tests.support.receiver import Receiver, Reply
from tests.support.threads import in_thread

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"
SECRET = "the app's secret"
SIGNATURE = {"preset": "meta-x-hub-256", "secret": SECRET}
WHATSAPP = {
    "mode": "callback",
    "timeout_ms": 60_000,
    "on_timeout": "retry",
    "correlation": {"preset": "whatsapp-cloud", "signature": SIGNATURE, "verify_token": "mine"},
}


def register(url: str, **values: Any) -> Consumer:
    channel = make_channel()
    body = {"url": url, "ordering": True, "ack": WHATSAPP, "retry": [0.01], **values}
    return consumers.put(channel.slug, "whatsapp", body, principal=acting("test")).row


def path_of(consumer: Consumer) -> str:
    address = inbound_addresses.url(consumer)
    assert address is not None
    return urlsplit(address).path


def statuses(*told: tuple[str, str]) -> bytes:
    """Return a callback of WhatsApp's Cloud API, in the shape of Meta's own examples."""
    entries = [
        {
            "id": provider_id,
            "status": status,
            "timestamp": "1795356000",
            "recipient_id": "16505551234",
            "conversation": {"id": "c0", "origin": {"type": "utility"}},
            "pricing": {"billable": True, "pricing_model": "PMP", "category": "utility"},
        }
        for provider_id, status in told
    ]
    number = {"display_phone_number": "15550783881", "phone_number_id": "106540352242922"}
    value = {"messaging_product": "whatsapp", "metadata": number, "statuses": entries}
    body = {
        "object": "whatsapp_business_account",
        "entry": [{"id": "102290129340398", "changes": [{"value": value, "field": "messages"}]}],
    }
    return json.dumps(body).encode()


def call_back(consumer: Consumer, body: bytes, secret: str = SECRET) -> Answer:
    signature = hmac.new(secret.encode(), body, sha256).hexdigest()
    return Api().call("POST", path_of(consumer), body, X_Hub_Signature_256=f"sha256={signature}")


def heard(consumer: Consumer, *told: tuple[str, str]) -> Any:
    answer = call_back(consumer, statuses(*told))
    assert answer.status == 200, answer.body
    return answer.json["results"]


def sent(provider_id: str) -> Reply:
    """Return WhatsApp's response to a message."""
    body = {
        "messaging_product": "whatsapp",
        "contacts": [{"input": "+16505551234", "wa_id": "16505551234"}],
        "messages": [{"id": provider_id, "message_status": "accepted"}],
    }
    return Reply(body=json.dumps(body).encode())


@pytest.mark.seed("S3-39", "S3-04")
def test_three_statuses_in_one_callback_release_three_keys(receiver: Receiver) -> None:
    receiver.script("/messages", [sent(f"wamid.HBgL{n}==") for n in range(1, 7)])
    consumer = register(receiver.url("/messages"), max_in_flight=1)
    with pumping.pumping() as pump:
        say(consumer, "A1 B1 C1 A2 B2 C2")
        first = Delivery.objects.filter(state="awaiting_ack")
        pump_until(pump, lambda: first.count() == 3)
        order = [request.body.decode() for request in receiver.requests()]
        assert sorted(order) == ["A1", "B1", "C1"], "the second ones wait behind them"
        told = [(f"wamid.HBgL{n}==", "delivered") for n in (1, 2, 3)]
        assert heard(consumer, *told) == {"on_time": 3}
        pump_until(pump, lambda: len(receiver.requests()) == 6 and first.count() == 3)
        assert {request.body.decode() for request in receiver.requests()[3:]} == {"A2", "B2", "C2"}
        assert heard(consumer, *told, ("wamid.HBgL4==", "sent")) == {"double": 3, "on_time": 1}
        assert Delivery.objects.filter(reason="acknowledged").count() == 4
    check()


@pytest.mark.seed("S3-39")
def test_a_failure_is_tried_again_and_gets_another_id(receiver: Receiver) -> None:
    receiver.script("/messages", [sent("wamid.1"), sent("wamid.2")])
    consumer = register(receiver.url("/messages"))
    waiting = Delivery.objects.filter(state="awaiting_ack")
    with pumping.pumping() as pump:
        say(consumer, "A1")
        pump_until(pump, waiting.exists)
        assert heard(consumer, ("wamid.1", "failed")) == {"on_time": 1}
        pump_until(pump, lambda: len(receiver.requests()) == 2 and waiting.exists())
        assert heard(consumer, ("wamid.2", "sent")) == {"on_time": 1}
        assert heard(consumer, ("wamid.1", "read"), ("wamid.2", "failed")) == {"double": 2}
    row = Delivery.objects.get()
    assert (row.state, row.failure_count, row.attempt_count) == ("delivered", 1, 2)
    check()


# -- authentication -----------------------------------------------------------------------------


@pytest.fixture
def consumer() -> Consumer:
    return register(NOWHERE)


@pytest.fixture
def now() -> datetime:
    return clock.now() + timedelta(seconds=5)


@pytest.mark.seed("S3-39")
def test_a_wrong_signature_is_403_and_changes_nothing(consumer: Consumer, now: datetime) -> None:
    row = answered(consumer, "wamid.1", now)
    body = statuses(("wamid.1", "delivered"))
    wrong = call_back(consumer, body, secret="another")
    assert (wrong.status, wrong.json["code"]) == (403, "wrong_signature")
    assert wrong.is_problem
    unsigned = Api().call("POST", path_of(consumer), body)
    assert (unsigned.status, unsigned.json["code"]) == (403, "wrong_signature")
    assert Delivery.objects.get(id=row.id).state == "awaiting_ack"
    assert Correlation.objects.count() == 1
    assert call_back(consumer, b"{").status == 400
    assert heard(consumer, ("wamid.1", "delivered")) == {"on_time": 1}


def test_without_signature_settings_the_url_is_enough() -> None:
    plain = WHATSAPP | {"correlation": {"preset": "whatsapp-cloud"}}
    consumer = register(NOWHERE, ack=plain)
    answer = Api().call("POST", path_of(consumer), statuses(("wamid.1", "sent")))
    assert (answer.status, answer.json) == (200, {"results": {"early": 1}})
    assert Api().call("POST", path_of(consumer), b"{}").json == {"results": {}}


def test_a_too_large_callback_is_413(consumer: Consumer) -> None:
    large = Api().call("POST", path_of(consumer), b"x", Content_Length=str(3 * 1024 * 1024 + 1))
    assert (large.status, large.json["code"]) == (413, "body_too_large")
    many = call_back(consumer, statuses(*[(f"{n}", "sent") for n in range(1001)]))
    assert (many.status, many.json["code"]) == (413, "too_many_words")
    assert not Correlation.objects.exists()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unused_inbound_address_is_404(consumer: Consumer, method: str) -> None:
    known = path_of(consumer)
    for path in ("/inbound/x", known[:-1], known + "x", "/inbound/%C3%A4"):
        answer = Api().call(method, path)
        assert (answer.status, answer.json["code"]) == (404, "unknown_address"), path
    assert Api().call("DELETE", known).status == 405
    consumers.retire(consumer.channel.slug, "whatsapp", principal=acting("test"))
    assert Api().call(method, known).status == 404


def test_a_provider_may_verify_the_address_first(consumer: Consumer) -> None:
    asked = f"{path_of(consumer)}?hub.mode=subscribe&hub.challenge=1158201444"
    good = Api().get(f"{asked}&hub.verify_token=mine")
    assert (good.status, good.body) == (200, b"1158201444")
    assert (good.header("Content-Type") or "").startswith("text/plain")
    assert Api().get(f"{asked}&hub.verify_token=yours").json["code"] == "wrong_token"
    assert Api().get(asked).status == 403
    for wrong in ("", "?hub.verify_token=mine", "?hub.verify_token=mine&hub.challenge=<b>"):
        assert Api().get(path_of(consumer) + wrong).status in {403, 422}
    script = "?hub.mode=subscribe&hub.verify_token=mine&hub.challenge=%3Cscript%3E"
    assert Api().get(path_of(consumer) + script).status == 422


def test_the_secret_is_sealed_and_the_address_can_be_renewed(consumer: Consumer) -> None:
    admin = Api(ApiKeyFactory.create(admin=True))
    place = f"channels/{consumer.channel.slug}/consumers/whatsapp"
    seen = admin.get(place)
    assert seen.json["ack"]["correlation"]["signature"]["secret"] == MASK
    assert urlsplit(seen.json["inbound_url"]).path == path_of(consumer)
    token = path_of(consumer).rpartition("/")[2]
    stored = str(list(Consumer.objects.values())) + str(list(AuditEntry.objects.values()))
    assert SECRET not in stored
    assert token not in stored
    settings = {"url": NOWHERE, "ordering": True, "retry": [0.01], "ack": seen.json["ack"]}
    assert admin.put(place, settings).json == seen.json, "what was read changes nothing"
    assert admin.patch(place, {"max_attempts": 4}).json["inbound_url"] == seen.json["inbound_url"]

    renewed = admin.post(f"{place}/inbound")
    assert renewed.status == 200
    assert Api().call("POST", path_of(consumer), b"{}").status == 404
    consumer.refresh_from_db()
    assert urlsplit(renewed.json["inbound_url"]).path == path_of(consumer)
    assert heard(consumer, ("wamid.1", "sent")) == {"early": 1}, "the secret is the same"

    gone = admin.patch(place, {"ack": None})
    assert gone.json["inbound_url"] is None
    assert Api().call("POST", path_of(consumer), b"{}").status == 404
    assert admin.post(f"{place}/inbound").json["code"] == "no_inbound"
    masked = admin.patch(place, {"ack": seen.json["ack"]})
    assert (masked.status, masked.json["field"]) == (422, "ack"), "there is nothing to keep"


def test_another_secret_keeps_the_address(consumer: Consumer) -> None:
    place, before = consumer.channel.slug, path_of(consumer)
    other = {"preset": "meta-x-hub-256", "secret": "new"}
    setting = {"preset": "whatsapp-cloud", "signature": other, "verify_token": "mine"}
    values = {"ack": WHATSAPP | {"correlation": setting}}
    done = consumers.patch(place, "whatsapp", values, principal=acting("test"))
    assert done.changed
    consumer.refresh_from_db()
    assert path_of(consumer) == before
    assert call_back(consumer, b"{}").status == 403
    assert call_back(consumer, b"{}", secret="new").status == 200


# -- early, late and repeated callbacks ---------------------------------------------------------


def taken(consumer: Consumer, now: datetime, said: str = "A1 A2") -> list[ClaimedDelivery]:
    say(consumer, said)
    while fanout.fan_out(100, slot=0).message_count:
        pass
    return take(consumer, now)


def words_heard(name: str) -> float:
    return float(metrics.ACKS.labels(name)._value.get())


def note(row: ClaimedDelivery, provider_id: str, now: datetime) -> None:
    """Record a 2xx response that contains a provider id."""
    mode = acks.mode_of(WHATSAPP)
    assert mode is not None
    result = Result(row, mode.answered, Outcome.DELIVERED, now, "test", provider_id=provider_id)
    assert settle.settle([result], now=now, slot=0) == 1


def answered(consumer: Consumer, provider_id: str, now: datetime) -> ClaimedDelivery:
    (row,) = taken(consumer, now)
    note(row, provider_id, now)
    return row


@pytest.mark.seed("S3-38", "S3-39")
@pytest.mark.parametrize(("status", "state"), [("delivered", "delivered"), ("failed", "queued")])
def test_a_callback_before_the_response_is_kept(
    consumer: Consumer, now: datetime, status: str, state: str
) -> None:
    (row,) = taken(consumer, now)
    assert heard(consumer, ("wamid.1", status)) == {"early": 1}
    assert heard(consumer, ("wamid.1", "read")) == {"double": 1}
    note(row, "wamid.1", now)
    assert Delivery.objects.get(id=row.id).state == state
    kept = Correlation.objects.get()
    assert (kept.id, kept.delivery_id) == (correlation_id(consumer.id, "wamid.1"), row.id)
    assert kept.ok is None, "it is used up"
    if state == "delivered":
        assert [one.event_type for one in take(consumer, now)] == ["A2"]
        assert heard(consumer, ("wamid.1", "read")) == {"double": 1}
    check()


@pytest.mark.trap("acknowledged, and sent again")
def test_an_early_acknowledgement_outweighs_a_providers_failure(
    consumer: Consumer, now: datetime
) -> None:
    """Both got the result ``early``, which promises that the acknowledgement is kept."""
    (row,) = taken(consumer, now)
    assert heard(consumer, ("wamid.1", "failed")) == {"early": 1}
    assert callbacks.acknowledge(row.id, ok=True, now=now).result == "early"
    note(row, "wamid.1", now)
    assert Delivery.objects.get(id=row.id).state == "delivered"
    check()


@pytest.mark.trap("a callback before its message")
def test_a_callback_from_before_the_message_is_not_about_it(
    consumer: Consumer, now: datetime
) -> None:
    """The id's owner is unknown then: another system on the same account, or a guess."""
    before = {name: words_heard(name) for name in ("early", "foreign")}
    assert (
        correlations.find(consumer.id, [ProviderStatus("wamid.1", ok=True)], now)[0].result
        == "early"
    )
    say(consumer, "A1")
    Message.objects.update(accepted_at=now + timedelta(seconds=2))
    (row,) = taken(consumer, now + timedelta(seconds=2), "")
    note(row, "wamid.1", now + timedelta(seconds=3))
    assert Delivery.objects.get(id=row.id).state == "awaiting_ack"
    assert {name: words_heard(name) - n for name, n in before.items()} == {"early": 0, "foreign": 1}
    assert heard(consumer, ("wamid.1", "sent")) == {"on_time": 1}


@pytest.mark.trap("a callback before its message")
def test_a_callback_counts_once_its_delivery_is_known(consumer: Consumer, now: datetime) -> None:
    before = {name: words_heard(name) for name in ("early", "foreign", "double")}
    (row,) = taken(consumer, now)
    heard(consumer, ("wamid.1", "sent"), ("wamid.1", "read"), ("wamid.2", "sent"))
    assert {name: words_heard(name) for name in before} == before
    note(row, "wamid.1", now)
    assert words_heard("early") - before["early"] == 1
    assert sum(correlations.forget_provider_statuses(now + timedelta(days=1))) == 0
    assert sum(correlations.forget_provider_statuses(now + timedelta(days=3))) == 2
    assert not Correlation.objects.exists()
    assert words_heard("foreign") - before["foreign"] == 1


def test_an_early_failure_counts_once(consumer: Consumer, now: datetime) -> None:
    """A provider that recognizes our webhook-id returns the same id again."""
    (row,) = taken(consumer, now)
    heard(consumer, ("wamid.1", "failed"))
    note(row, "wamid.1", now)
    (again,) = take(consumer, now + timedelta(seconds=5))
    assert again.id == row.id
    note(again, "wamid.1", now)
    assert Delivery.objects.get(id=row.id).state == "awaiting_ack"
    assert heard(consumer, ("wamid.1", "sent")) == {"on_time": 1}


@pytest.mark.seed("S3-38")
def test_a_late_callback_releases_no_delivery(consumer: Consumer, now: datetime) -> None:
    row = answered(consumer, "wamid.1", now)
    assert callbacks.acknowledge(row.id, ok=True, now=now).result == "on_time"
    Delivery.objects.filter(id=row.id).update(reason="ack_timeout")  # as with on_timeout: proceed
    (second,) = take(consumer, now)
    note(second, "wamid.2", now)
    assert heard(consumer, ("wamid.1", "failed"), ("wamid.1", "read")) == {"late": 2}
    assert Delivery.objects.get(id=second.id).state == "awaiting_ack"
    check()


def test_ids_of_another_consumer_are_ignored(consumer: Consumer, now: datetime) -> None:
    row = answered(consumer, "wamid.1", now)
    other = register(NOWHERE)
    assert heard(other, ("wamid.1", "sent")) == {"early": 1}
    assert Delivery.objects.get(id=row.id).state == "awaiting_ack"


def test_a_callback_about_a_deleted_delivery_is_late(consumer: Consumer, now: datetime) -> None:
    row = answered(consumer, "wamid.1", now)
    Delivery.objects.filter(id=row.id).delete()
    assert heard(consumer, ("wamid.1", "sent")) == {"late": 1}


@pytest.mark.mariadb
def test_a_callback_concurrent_with_the_response_finds_its_delivery(
    consumer: Consumer, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response is recorded between our read and write; SQLite has only one writer at a time."""
    (row,) = taken(consumer, now)
    create = Correlation.objects.create
    rivals = iter([lambda: note(row, "wamid.1", now)])

    def rival(**values: Any) -> Correlation:
        for one in rivals:
            in_thread(one).join()
        return create(**values)

    monkeypatch.setattr(Correlation.objects, "create", rival)
    assert heard(consumer, ("wamid.1", "sent")) == {"on_time": 1}
    assert Delivery.objects.get(id=row.id).state == "delivered"


def test_a_consumer_without_correlation_costs_no_statement(
    consumer: Consumer, now: datetime
) -> None:
    plain = pumping.make_consumer(make_channel(), NOWHERE)
    say(plain, "A1")
    while fanout.fan_out(100, slot=0).message_count:
        pass
    rows = take(plain, now)
    assert config_cache.awaiting() == {consumer.id}
    with CaptureQueriesContext(connection) as context:
        assert end(rows, "delivered", now) == 1
    assert not [one["sql"] for one in context if "correlation" in one["sql"].lower()]
