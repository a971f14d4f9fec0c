"""Query plans of the portal's webhook pages: statements read only the rows that they return."""

import pytest
from django.test import Client

from channels_app.database import keyset
from channels_app.models import Channel, Consumer, Team
from delivery.models import Replay
from delivery.portal import charts
from delivery.portal.views import replays
from tests.integration.indexes.judge import judging
from tests.integration.indexes.world import World
from tests.support import people
from tests.support.factories import TeamFactory

pytestmark = pytest.mark.django_db(transaction=True)

QUERIES = (
    *(
        "",
        "?state=Dead",
        "?state=Retry-Delivery",
        "?state=Delivered&since=24h",
        "?outcome=dns_error",
    ),
    *("?event_type=a.*", "?since=1h&outcome=timeout", "dead/", "dead/?event_type=x.y"),
    "upcoming/",
    *("?status_code=503", "dead/?status_code=503", "dead/replay/?status_code=503&since=24h"),
    *("health/", "health/?span=7d", "replays/", "dead/replay/", "dead/replay/?outcome=timeout"),
    *("settings/", "secret/", "test/"),
)


@pytest.fixture
def owner(large: World, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A member of the team that owns all of it."""
    monkeypatch.setattr(keyset, "SCAN_ROWS", (40,) * 4)
    monkeypatch.setattr(charts, "SAMPLE", 10)
    team: Team = TeamFactory.create(slug="acme")
    Consumer.objects.update(team=team)
    Replay.objects.update(team_id=team.id)
    monkeypatch.setattr(replays, "LAST", 2)
    monkeypatch.setattr(replays, "SCAN_ROWS", 100)
    Channel.objects.update(exposure="external")
    return people.person("olga", team, "owner")


@pytest.mark.slow("explains every statement of the pages")
def test_every_page_of_a_webhook(large: World, owner: Client) -> None:
    one = large.consumer
    root = f"/portal/acme/webhooks/{one.channel}/{one}/"
    middle = large.rows["delivered"][len(large.rows["delivered"]) // 2]
    with judging() as judge:
        for query in (*QUERIES, f"?before={middle}", f"?after={middle}", f"deliveries/{middle}/"):
            judge.where = query
            assert owner.get(root + query).status_code == 200
        judge.where = "index"
        assert owner.get("/portal/acme/webhooks/").status_code == 200
        judge.accept()
