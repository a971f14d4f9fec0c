"""Who belongs to a team."""

from django.http import HttpResponse

from channels_app.ui.access import TeamRequest, TeamView


class MembersView(TeamView):
    """The team's people with their roles."""

    section = "members"

    def get(self, request: TeamRequest) -> HttpResponse:
        """All of them."""
        members = request.team.memberships.select_related("user").order_by("user__username")
        return self.page("portal/members.html", {"members": members})
