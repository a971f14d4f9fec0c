"""Serve teams and the quotas of their messages."""

from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import cursor, etags, openapi
from channels_app.api.authentication import Caller
from channels_app.api.base import ApiView, json_object, stamps
from channels_app.conf import conf
from channels_app.core import fields
from channels_app.core.errors import NotFound
from channels_app.models import Team
from channels_app.registry import teams
from channels_app.registry.teams import TEAM_FIELDS

SETTINGS = openapi.component("TeamSettings", fields.object_schema(TEAM_FIELDS))
CHANGES = openapi.component("TeamChanges", fields.object_schema(TEAM_FIELDS, partial=True))
EFFECTIVE = openapi.component(
    "EffectiveQuota",
    openapi.record(max_waiting_messages=openapi.MAYBE_WHOLE, max_waiting_bytes=openapi.MAYBE_WHOLE),
)
TEAM = openapi.component(
    "Team",
    openapi.resource(
        fields.object_schema(TEAM_FIELDS), slug=fields.slug.schema, effective=EFFECTIVE
    ),
)


class TeamListView(ApiView):
    """The teams that exist for the caller."""

    scopes = {"GET": ("read",)}

    @openapi.operation(
        "listTeams",
        "List teams",
        tag="Teams",
        answers={200: openapi.page_of(TEAM)},
        errors=(422,),
        parameters=openapi.LIST,
    )
    def get(self, request: Request) -> Response:
        """List the teams, newest first."""
        page = cursor.read(request)
        return Response(page.answer([_visible(self.caller)], representation))


class TeamView(ApiView):
    """One team."""

    scopes = {"GET": ("read",), "PUT": ("admin",), "PATCH": ("admin",)}

    @openapi.operation(
        "getTeam",
        "Get a team",
        tag="Teams",
        answers={200: TEAM, 304: None},
        errors=(404,),
        parameters=(openapi.TEAM, *openapi.READING),
    )
    def get(self, request: Request, team: str) -> Response:
        """Return the team's settings."""
        found = _visible(self.caller).filter(slug=team).first()
        if found is None:
            raise NotFound("unknown_team", f"There is no team {team}.")
        return etags.fresh(request, representation(found), found.version)

    @openapi.operation(
        "putTeam",
        "Create or replace a team",
        tag="Teams",
        body={openapi.JSON: SETTINGS},
        optional=True,
        answers={200: TEAM, 201: TEAM},
        errors=(400, 411, 412, 413, 415, 422),
        parameters=(openapi.TEAM, *openapi.CREATING),
    )
    def put(self, request: Request, team: str) -> Response:
        """Create or replace the team. Repeating the call changes nothing."""
        done = teams.put(
            team,
            json_object(request, optional=True),
            actor=self.caller.actor,
            condition=etags.precondition_of(request),
        )
        return etags.registered(done, representation(done.row), f"teams/{team}")

    @openapi.operation(
        "patchTeam",
        "Change settings of a team",
        tag="Teams",
        body={openapi.JSON: CHANGES},
        answers={200: TEAM},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(openapi.TEAM, *openapi.WRITING),
    )
    def patch(self, request: Request, team: str) -> Response:
        """Change the given settings and keep the others."""
        done = teams.patch(
            team,
            json_object(request),
            actor=self.caller.actor,
            condition=etags.precondition_of(request),
        )
        return etags.registered(done, representation(done.row))


def representation(team: Team) -> dict[str, Any]:
    """The team as the API shows it."""
    quota = team.quota(conf().team_quota)
    effective = {
        "max_waiting_messages": quota.messages or None,
        "max_waiting_bytes": quota.bytes or None,
    }
    return {
        "slug": team.slug,
        **teams.describe(team),
        "effective": effective,
        **stamps(team),
    }


def _visible(caller: Caller) -> QuerySet[Team]:
    if caller.tenant.everything:
        return Team.objects.all()
    team_id = caller.key.team_id
    return Team.objects.none() if team_id is None else Team.objects.filter(pk=team_id)
