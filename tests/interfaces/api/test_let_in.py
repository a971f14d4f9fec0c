"""What a team sees of a channel: only its own producers, and no message from before its grant."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from channels_app.core import times
from channels_app.database import clock
from channels_app.models import ApiKey, Channel, Consumer, Membership, Team
from channels_app.registry import api_keys, channels
from delivery import replay
from delivery.models import Replay
from tests.support.calling import Api, problem
from tests.support.counts import make_deliveries, make_messages, public
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    ProducerFactory,
    TeamFactory,
)
from tests.support.principals import acting

pytestmark = pytest.mark.django_db

SCOPES = ["read", "register", "replay"]


def ago(days: float) -> datetime:
    return clock.now() - timedelta(days=days)


def at(consumer: Consumer) -> str:
    return f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}/backfill"


def looked(api: Api, consumer: Consumer, **body: Any) -> tuple[int, int]:
    """Return how many messages a backfill would send, and how many its sample shows."""
    answer = api.post(at(consumer), {"dry_run": True, **body})
    assert answer.status_code == 200, answer.json()
    return answer.json()["matched_count"], len(answer.json()["sample"])


def keyed(team: Team, *channels: str, since: float, until: float | None = None) -> ApiKey:
    """Create a key of the team that is valid for a period, in days before now."""
    ends = None if until is None else ago(until)
    return ApiKeyFactory.create(
        team=team, scopes=SCOPES, channels=list(channels), created_at=ago(since), expires_at=ends
    )


def consumer_of(team: Team, channel: Channel) -> Consumer:
    """Create a consumer of the team, with one earlier message for each of the last ten days."""
    consumer = ConsumerFactory.create(team=team, channel=channel)
    for days in range(10):
        make_messages(consumer, 1, accepted_at=ago(days + 0.5))
    return consumer


@pytest.mark.trap("a backfill from before the grant")
def test_a_team_cannot_backfill_from_before_its_grant() -> None:
    team = TeamFactory.create(created_at=ago(3))
    channel = ChannelFactory.create(external=True, created_at=ago(30))
    consumer = consumer_of(team, channel)
    api = Api(keyed(team, since=3))

    assert looked(Api(admin=True), consumer) == (10, 10)
    assert looked(api, consumer) == (3, 3)
    assert looked(api, consumer, **{"from": times.text(ago(8))}) == (3, 3)
    asked = api.post(at(consumer), {}).json()
    assert replay.run_due(clock.now(), 0) == 3
    assert asked["filter"]["from"][:10] == ago(3).isoformat()[:10]
    before = api.post(at(consumer), {"to": times.text(ago(4))})
    assert problem(before) == (422, "invalid_fields", "to")
    assert Replay.objects.count() == 1

    channels.patch(channel.slug, {"history": "shared"}, principal=acting("test"))
    assert looked(api, consumer) == (7, 7)


@pytest.mark.parametrize(
    ("keys", "days"),
    [
        pytest.param([(6, 4), (5, None)], 6, id="since the first of keys that overlap"),
        pytest.param([(9, 6), (3, None)], 3, id="again, after it was let in before"),
    ],
)
def test_a_team_gets_an_internal_channel_by_keys_that_name_it(
    keys: list[tuple[float, float | None]], days: int
) -> None:
    team, channel = TeamFactory.create(created_at=ago(20)), ChannelFactory.create()
    consumer = consumer_of(team, channel)
    ApiKeyFactory.create(team=team, scopes=SCOPES, channels=["other"], created_at=ago(15))
    *_, key = [keyed(team, channel.slug, since=since, until=until) for since, until in keys]

    assert looked(Api(key), consumer)[0] == days


def test_membership_grants_external_channels_from_its_start() -> None:
    team = TeamFactory.create(created_at=ago(5))
    channel = ChannelFactory.create(external=True, created_at=ago(30))
    consumer = consumer_of(team, channel)
    api = Api(keyed(team, since=1))
    assert looked(api, consumer)[0] == 1

    Membership.objects.create(team=team, user=User.objects.create(username="o"), role="owner")
    assert looked(api, consumer)[0] == 5


def test_an_external_channel_is_granted_from_when_it_became_external() -> None:
    team, channel = TeamFactory.create(created_at=ago(20)), ChannelFactory.create()
    consumer = consumer_of(team, channel)
    api = Api(keyed(team, since=20))

    channels.patch(channel.slug, {"exposure": "external"}, principal=acting("test"))

    assert looked(api, consumer)[0] == 0


def test_a_successor_without_an_overlap_keeps_what_its_key_had() -> None:
    team, channel = TeamFactory.create(created_at=ago(20)), ChannelFactory.create()
    consumer = consumer_of(team, channel)
    old = keyed(team, channel.slug, since=6)

    api_keys.rotate(old.key_id, {"overlap_s": 0}, principal=acting("test"))

    newest = keyed(team, channel.slug, since=0)
    assert looked(Api(newest), consumer)[0] == 6


@pytest.mark.trap("a producer's name shown to consumers")
def test_a_team_does_not_see_the_producer_of_a_received_message() -> None:
    team = TeamFactory.create()
    consumer = ConsumerFactory.create(team=team, channel=ChannelFactory.create(external=True))
    inner, own = ProducerFactory.create(slug="payroll"), ProducerFactory.create(team=team)
    (first,), (second,) = make_deliveries(consumer, 1), make_deliveries(consumer, 1)
    for row, producer in ((first, inner), (second, own)):
        row.message.producer, row.message.idempotency_key = producer, f"{producer.slug}-7"
        row.message.save()
    api = Api(keyed(team, since=1))

    told = api.get(f"/messages/{row_id(first)}").json()
    assert (told["producer"], told["idempotency_key"]) == (None, "")
    everything = [
        api.get(path).content
        for path in (
            f"/messages/{row_id(first)}",
            f"/channels/{consumer.channel.slug}/messages",
            f"/deliveries/{public(first)}",
        )
    ]
    assert b"payroll" not in b"".join(everything)
    assert api.get(f"/messages/{row_id(second)}").json()["producer"] == own.slug
    assert Api(admin=True).get(f"/messages/{row_id(first)}").json()["producer"] == "payroll"


def row_id(delivery: Any) -> str:
    return str(delivery.message)
