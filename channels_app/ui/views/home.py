"""Where a visit begins: the choice of a team, and a team's first page."""

from collections import Counter as Tally
from collections.abc import Mapping
from typing import Any

from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import redirect

from channels_app import clock
from channels_app.models import Consumer
from channels_app.rules import condition
from channels_app.rules.condition import Condition
from channels_app.steps import issue_key
from channels_app.ui.access import PersonRequest, PersonView, TeamRequest, TeamView
from channels_app.ui.tags import teams_of
from channels_app.ui.views.joining import may_found


class ChooseView(PersonView):
    """The person's teams; the only one at once, unless ``?all`` asks for the list."""

    def get(self, request: PersonRequest) -> HttpResponse:
        """Which team?"""
        memberships = list(teams_of(request.user))
        if len(memberships) == 1 and "all" not in request.GET:
            return redirect("portal:home", memberships[0].team.slug)
        context = {"memberships": memberships, "may_found": may_found(request.user)}
        return self.page("portal/choose.html", context)


class HomeView(TeamView):
    """What the team has, and what to do next."""

    section = "home"

    def get(self, request: TeamRequest) -> HttpResponse:
        """How many of everything."""
        webhooks = request.team.consumers.exclude(state=Consumer.State.RETIRED)
        working = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=clock.now()))
        words = Tally(_condition(row).word for row in webhooks.values(*FACTS))
        halted = words["paused"] + words["disabled"]
        context = {
            "webhook_count": words.total(),
            "halted_count": halted,
            "failing_count": words["failing"] + words["unsteady"],
            "member_count": request.team.memberships.count(),
            "key_count": issue_key.keys_of(request.team.slug).filter(working).count(),
        }
        return self.page("portal/home.html", context)


FACTS = (
    *("state", "mode", "health__circuit", "health__failing_since"),
    *("health__last_success_at", "health__last_failure_at"),
)


def _condition(row: Mapping[str, Any]) -> Condition:
    return condition.of(
        row["state"],
        is_pull=row["mode"] == Consumer.Mode.PULL,
        is_open=row["health__circuit"] == "open",
        is_failing=row["health__failing_since"] is not None,
        ever_succeeded=row["health__last_success_at"] is not None,
        ever_failed=row["health__last_failure_at"] is not None,
    )
