"""Quota usage: a bar on the pages of a channel and of a team."""

import pytest

from channels_app.database import clock
from channels_app.models import AuditEntry, Channel, QuotaUsage, Team
from tests.support import console, people
from tests.support.factories import ChannelFactory, TeamFactory

pytestmark = pytest.mark.django_db


def used(scope: str, row: Channel | Team) -> None:
    """Store that three of the four allowed messages wait."""
    QuotaUsage.objects.create(
        scope=scope, owner_id=row.pk, messages=3, bytes=1536, counted_at=clock.now()
    )


def test_channels_and_teams_show_usage_and_accept_quotas() -> None:
    operator = console.operator()
    for scope, row in (("channel", ChannelFactory.create()), ("team", TeamFactory.create())):
        row.max_waiting_messages = 4
        row.save()
        used(scope, row)
        html = console.look(operator, console.page_url(row))
        assert '<rect width="75.0"' in html
        assert "3 of 4" in html
        assert "1.5" in html


def test_the_console_sets_and_audits_a_teams_quotas() -> None:
    team = TeamFactory.create(slug="shop", name="Shop")
    form = {"slug": "shop", "name": "Shop", "max_waiting_messages": "9", "max_waiting_bytes": ""}
    form |= console.inline("memberships") | console.inline("invitations")
    operator = console.operator()
    assert operator.post(console.page_url(team), form).status_code == 302
    team.refresh_from_db()
    assert team.max_waiting_messages == 9
    assert AuditEntry.objects.get(target="team:shop").after == {"max_waiting_messages": "9"}
    refused = operator.post(console.page_url(team), form | {"max_waiting_messages": "0"})
    assert b"greater than or equal to 1" in refused.content


def test_members_see_their_teams_usage() -> None:
    team = TeamFactory.create(slug="acme", max_waiting_messages=4)
    used("team", team)
    html = people.person("vera", team).get("/portal/acme/").content.decode()
    assert 'value="75.0"' in html
    assert "3 of 4" in html
