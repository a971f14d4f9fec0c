"""Pull consumers in the portal: registered by form, with the code that receives."""

import pytest
from django.test import Client

from channels_app.models import Channel, Consumer, Team
from tests.interfaces.portal.test_webhooks import SECRET, text
from tests.support import people
from tests.support.calling import Api
from tests.support.factories import ApiKeyFactory, ChannelFactory, ConsumerFactory
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
    assert "It asks for them" in text(owner.get(f"{ROOT}/-/new/orders/"))
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
    assert "asks for its messages" in text(owner.get(f"{ROOT}/"))
    assert worker.say("ack", one["lease"])[0] == [one["lease"]]
    shown = text(owner.get(detail))
    assert "Attempt 1: delivered" in shown
    assert "curl -isSg" not in shown
    assert "webhook-signature" not in shown  # nothing is sent to it


@pytest.mark.parametrize(
    "tab", ["", "ahead/", "dead/", "health/", "settings/", "secret/", "replays/"]
)
def test_every_tab_of_it_works(owner: Client, orders: Channel, team: Team, tab: str) -> None:
    ConsumerFactory.create(channel=orders, client_id="printer", team=team, pull=True)
    answer = owner.get(f"{ROOT}/orders/printer/{tab}")
    assert answer.status_code == 200
    assert ("leases/ack" in text(answer)) == (tab == "secret/")
    assert "a test" not in text(answer)


def test_its_settings_are_changed_without_an_address(
    owner: Client, orders: Channel, team: Team
) -> None:
    consumer = ConsumerFactory.create(channel=orders, client_id="printer", team=team, pull=True)
    page = text(owner.get(f"{ROOT}/orders/printer/settings/"))
    assert 'name="url"' not in page
    form = {"version": str(consumer.version), "max_attempts": "7", "patterns": "order.*"}
    assert owner.post(f"{ROOT}/orders/printer/settings/", form).status_code == 302
    consumer.refresh_from_db()
    assert (consumer.max_attempts, consumer.event_types) == (7, ["order.*"])
    assert (consumer.mode, consumer.url) == ("pull", "")


def test_a_webhook_still_needs_an_address(owner: Client, orders: Channel) -> None:
    for mode in ("push", ""):
        answer = owner.post(f"{ROOT}/-/new/orders/", {"client_id": "billing", "mode": mode})
        assert answer.status_code == 422
        assert "An address is required" in text(answer)
    assert not Consumer.objects.exists()
