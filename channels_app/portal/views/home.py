"""Show the choice of a team, and a team's start page."""

from collections import Counter as Tally

from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import redirect

from channels_app.conf import conf
from channels_app.database import clock
from channels_app.models import Consumer, QuotaUsage
from channels_app.portal.access import PersonRequest, PersonView, TeamRequest, TeamView
from channels_app.portal.tags import teams_of
from channels_app.portal.views.joining import may_found
from channels_app.registry import api_keys


class ChooseView(PersonView):
    """The user's teams. A single one is opened at once, unless the URL has ``?all``."""

    def get(self, request: PersonRequest) -> HttpResponse:
        """List the teams."""
        memberships = list(teams_of(request.user))
        if len(memberships) == 1 and "all" not in request.GET:
            return redirect("portal:home", memberships[0].team.slug)
        context = {"memberships": memberships, "may_found": may_found(request.user)}
        return self.page("portal/choose.html", context)


class HomeView(TeamView):
    """What the team has, and next steps."""

    section = "home"

    def get(self, request: TeamRequest) -> HttpResponse:
        """Count the team's objects."""
        webhooks = request.team.consumers.exclude(state=Consumer.State.RETIRED)
        working = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=clock.now()))
        codes = Tally(row.condition.code for row in webhooks.select_related("health"))
        halted = codes["paused"] + codes["disabled"]
        context = {
            "webhook_count": codes.total(),
            "halted_count": halted,
            "failing_count": codes["failing"] + codes["unsteady"],
            "member_count": request.team.memberships.count(),
            "bars": request.team.quota(conf().team_quota).bars(
                QuotaUsage.of(QuotaUsage.Scope.TEAM, request.team.pk)
            ),
            "key_count": api_keys.keys_of(request.team.slug).filter(working).count(),
        }
        return self.page("portal/home.html", context)
