"""Pull consumers in the portal: registered by form, with example code that receives."""

import pytest
from django.test import Client

from channels_app.models import Channel, Consumer, Team
from tests.interfaces.portal.test_webhooks import SECRET, text
from tests.support import people
from tests.support.calling import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory, ConsumerFactory, ProducerFactory
from tests.support.pulling import Worker, bring

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = "/portal/acme/webhooks"


@pytest.fixture
def owner(team: Team) -> Client:
    return people.person("olga", team, "owner")


@pytest.fixture
def orders() -> Channel:
    return ChannelFactory.create(slug="orders", external=True)


def test_a_pull_consumer_is_registered_and_shown_how_to_receive(
    owner: Client, orders: Channel, team: Team
) -> None:
    assert "It pulls them" in text(owner.get(f"{ROOT}/-/new/orders/"))
    made = owner.post(f"{ROOT}/-/new/orders/", {"client_id": "printer", "mode": "pull"})
    assert made.status_code == 201
    page = text(made)
    assert "channels/orders/consumers/printer" in page
    assert "/portal/acme/keys/new/" in page
    assert SECRET.search(page) is None
    consumer = Consumer.objects.get()
    assert (consumer.mode, consumer.url, consumer.team) == ("pull", "", team)

    bring(consumer, b'{"n": 1}')
    worker = Worker(consumer, Api(ApiKeyFactory.create(team=team, scopes=["receive"])))
    (one,) = worker.receive()
    listed = text(owner.get(f"{ROOT}/orders/printer/"))
    assert one["delivery_id"] in listed
    assert "Send a test" not in listed
    detail = f"{ROOT}/orders/printer/deliveries/{one['delivery_id']}/"
    assert "A worker has it" in text(owner.get(detail))
    assert "pulls its messages" in text(owner.get(f"{ROOT}/"))
    assert worker.say("ack", one["lease"])[0] == [one["lease"]]
    shown = text(owner.get(detail))
    assert "Attempt 1: delivered" in shown
    assert "curl -isSg" not in shown
    assert "webhook-signature" not in shown  # nothing is sent to a pull consumer


def test_every_tab_of_a_pull_consumer_works(owner: Client, orders: Channel, team: Team) -> None:
    ConsumerFactory.create(channel=orders, client_id="printer", team=team, pull=True)
    for tab in ("", "upcoming/", "dead/", "health/", "settings/", "secret/", "replays/"):
        answer = owner.get(f"{ROOT}/orders/printer/{tab}")
        assert answer.status_code == 200
        assert ("leases/ack" in text(answer)) == (tab == "secret/")
        assert "a test" not in text(answer)


def test_a_pull_consumers_settings_need_no_url_and_keep_an_operators_dead_letter_channel(
    owner: Client, orders: Channel, team: Team
) -> None:
    chosen = ChannelFactory.create(slug="operators-choice")
    consumer = ConsumerFactory.create(
        channel=orders, client_id="printer", team=team, pull=True, dead_letter_channel=chosen
    )
    page = text(owner.get(f"{ROOT}/orders/printer/settings/"))
    assert 'name="url"' not in page
    form = {"version": str(consumer.version), "max_attempts": "7", "patterns": "order.*"}
    form["dead_letter_channel"] = "operators-choice"
    assert owner.post(f"{ROOT}/orders/printer/settings/", form).status_code == 302
    consumer.refresh_from_db()
    assert (consumer.max_attempts, consumer.event_types) == (7, ["order.*"])
    assert (consumer.mode, consumer.url) == ("pull", "")
    assert consumer.dead_letter_channel == chosen


def test_a_push_consumer_needs_a_url(owner: Client, orders: Channel) -> None:
    for mode in ("push", ""):
        answer = owner.post(f"{ROOT}/-/new/orders/", {"client_id": "billing", "mode": mode})
        assert answer.status_code == 422
        assert "An address is required" in text(answer)
    assert not Consumer.objects.exists()


def test_charging_expired_leases_is_a_setting_of_pull_consumers_only(
    owner: Client, orders: Channel, team: Team
) -> None:
    pulls = ConsumerFactory.create(channel=orders, client_id="printer", team=team, pull=True)
    ConsumerFactory.create(channel=orders, client_id="billing", team=team)
    assert 'name="lapsed_leases"' not in text(owner.get(f"{ROOT}/orders/billing/settings/"))
    assert 'value="free"' in text(owner.get(f"{ROOT}/orders/printer/settings/"))
    form = {"version": str(pulls.version), "patterns": "", "lapsed_leases": "charged"}
    assert owner.post(f"{ROOT}/orders/printer/settings/", form).status_code == 302
    pulls.refresh_from_db()
    assert pulls.lapsed_leases == "charged"
    refused = owner.post(f"{ROOT}/orders/printer/settings/", form | {"lapsed_leases": "never"})
    assert refused.status_code == 422


def test_dead_letter_channels_are_those_the_team_may_publish_to(
    owner: Client, orders: Channel, team: Team
) -> None:
    page = f"{ROOT}/-/new/orders/"
    assert 'name="dead_letter_channel"' not in text(owner.get(page)), "without a producer"
    mine, other = ProducerFactory.create(team=team), ProducerFactory.create()
    for slug in ("dead", "secret", "theirs"):
        ChannelFactory.create(slug=slug)
    ApiKeyFactory.create(producer=mine, channels=["dead"])
    ApiKeyFactory.create(producer=mine, channels=["secret"], revoked=True)
    ApiKeyFactory.create(producer=other, channels=["theirs"])
    form = {"client_id": "printer", "mode": "pull", "lapsed_leases": "charged"}
    shown = text(owner.get(page))
    assert '<option value="dead">' in shown
    for slug in ("secret", "theirs", "orders"):
        assert f'<option value="{slug}">' not in shown
        answer = owner.post(page, form | {"dead_letter_channel": slug})
        assert answer.status_code == 422
    assert owner.post(page, form | {"dead_letter_channel": "dead"}).status_code == 201
    consumer = Consumer.objects.get()
    assert (str(consumer.dead_letter_channel), consumer.lapsed_leases) == ("dead", "charged")
    settings = f"{ROOT}/orders/printer/settings/"
    assert '<option value="dead" selected>' in text(owner.get(settings))
    owner.post(settings, {"version": str(consumer.version), "patterns": ""})
    consumer.refresh_from_db()
    assert consumer.dead_letter_channel is None
