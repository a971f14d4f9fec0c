"""Access: which team a page of the portal is about, and what this person may do in it."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.views import View

from channels_app.models import Membership, Team
from channels_app.rules import roles

READ_METHODS = ("GET", "HEAD", "OPTIONS")


class PersonRequest(HttpRequest):
    """A request of somebody who is signed in; PersonView sees to it."""

    user: User


class TeamRequest(PersonRequest):
    """A request of a member; TeamView has found the team and the role."""

    team: Team
    membership: Membership


class PersonView(View):
    """A page for whoever is signed in. No page of the portal stays in a browser's cache."""

    section: ClassVar[str] = ""
    """The entry of the navigation that is lit."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Ask strangers to sign in."""
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        response = self.enter(cast(PersonRequest, request), *args, **kwargs)
        add_never_cache_headers(response)
        return response

    def enter(self, request: PersonRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Go on to the method's handler."""
        return super().dispatch(request, *args, **kwargs)

    def page(
        self, template: str, context: Mapping[str, Any] | None = None, *, status: int = 200
    ) -> TemplateResponse:
        """A page in the portal's frame."""
        known = {"section": self.section, **(context or {})}
        return TemplateResponse(self.request, template, known, status=status)


class TeamView(PersonView):
    """A page of one team: 404 for everybody else, 403 for a member whose role is too small."""

    reader: ClassVar[str] = "viewer"
    """Least role that may look."""
    writer: ClassVar[str] = "editor"
    """Least role that may do what changes something."""

    def enter(self, request: PersonRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Find the team of the address and check the role. Raises Http404."""
        member = cast(TeamRequest, request)
        member.membership = membership_of(request.user, kwargs.pop("team"))
        member.team = member.membership.team
        needed = self.reader if request.method in READ_METHODS else self.writer
        if not roles.includes(member.membership.role, needed):
            return self.refuse(member, needed)
        return super().enter(member, *args, **kwargs)

    def page(
        self, template: str, context: Mapping[str, Any] | None = None, *, status: int = 200
    ) -> TemplateResponse:
        """A page of this team, told what the person may do."""
        request = cast(TeamRequest, self.request)
        role = request.membership.role
        known = {
            "team": request.team,
            "membership": request.membership,
            "may_edit": roles.includes(role, "editor"),
            "is_owner": roles.includes(role, "owner"),
        }
        return super().page(template, {**known, **(context or {})}, status=status)

    def refuse(self, request: TeamRequest, needed: str) -> TemplateResponse:
        """403: what is missing, and who can give it."""
        owners = request.team.memberships.filter(role="owner").select_related("user")
        context = {"needed": needed, "owners": owners}
        return self.page("portal/forbidden.html", context, status=403)


def membership_of(user: User, slug: str) -> Membership:
    """The person's role in a team. Raises Http404: another team does not exist for them."""
    mine = Membership.objects.select_related("team").filter(user=user, team__slug=slug)
    found = mine.first()
    if found is None:
        raise Http404(f"There is no team {slug}.")
    return found


def actor(request: HttpRequest) -> str:
    """How the audit log names this person."""
    return f"user:{request.user.get_username()}"
