"""Serve teams and the quotas of their messages."""

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import base, cursor, openapi
from channels_app.api.base import ApiView, ResourceView, json_object
from channels_app.core.errors import NotFound
from channels_app.models import Team
from channels_app.registry import teams
from channels_app.serializers.teams import TeamSerializer

SETTINGS, CHANGES, TEAM = openapi.described(TeamSerializer)


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
        return Response(page.answer([_visible(self.principal)], TeamSerializer().to_representation))


class TeamView(ResourceView):
    """One team."""

    serializer = TeamSerializer
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
        row = _visible(self.principal).filter(slug=team).first()
        if row is None:
            raise NotFound("unknown_team", f"There is no team {team}.")
        return base.fresh(request, TeamSerializer(row).data, row.version)

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
        return self.written(teams.put, team, json_object(request, optional=True))

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
        return self.written(teams.patch, team, json_object(request))


def _visible(principal: Principal) -> QuerySet[Team]:
    if principal.is_operator:
        return Team.objects.all()
    team_id = principal.team_id
    return Team.objects.none() if team_id is None else Team.objects.filter(pk=team_id)
