"""Find the team of a portal page, and check what the user may do in it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.views import View

from channels_app.access.principal import Principal
from channels_app.core import access
from channels_app.models import Membership, Team

READ_METHODS = ("GET", "HEAD", "OPTIONS")


class PersonRequest(HttpRequest):
    """A request of a signed-in user; PersonView ensures this, and sets the principal."""

    user: User
    principal: Principal


class TeamRequest(PersonRequest):
    """A request of a member; TeamView sets the team and the membership."""

    team: Team
    membership: Membership


class PersonView(View):
    """A page for signed-in users. Browsers must not cache pages of the portal."""

    section: ClassVar[str] = ""
    """The highlighted entry of the navigation."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Redirect to the sign-in page if the user is not signed in."""
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        person = cast(PersonRequest, request)
        person.principal = principal_of(person.user)
        response = self.enter(person, *args, **kwargs)
        add_never_cache_headers(response)
        return response

    def enter(self, request: PersonRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Call the handler of the method."""
        return super().dispatch(request, *args, **kwargs)

    def page(
        self, template: str, context: Mapping[str, Any] | None = None, *, status: int = 200
    ) -> TemplateResponse:
        """Render a page in the portal's layout."""
        values = {"section": self.section, **(context or {})}
        return TemplateResponse(self.request, template, values, status=status)


class TeamView(PersonView):
    """A page of one team: 404 for non-members, 403 for members whose role does not suffice."""

    reader: ClassVar[str] = "viewer"
    """Minimum role for reading."""
    writer: ClassVar[str] = "editor"
    """Minimum role for methods that change something."""

    def enter(self, request: PersonRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Find the team of the URL, and check the user's role. Raises Http404."""
        member = cast(TeamRequest, request)
        member.membership = membership_of(request.user, kwargs.pop("team"))
        member.team, role = member.membership.team, member.membership.role
        member.principal = replace(
            member.principal, team_id=member.team.id, role=role, scopes=access.ROLE_SCOPES[role]
        )
        needed = self.reader if request.method in READ_METHODS else self.writer
        if not member.principal.has_role(needed):
            return self.refuse(member, needed)
        return super().enter(member, *args, **kwargs)

    def page(
        self, template: str, context: Mapping[str, Any] | None = None, *, status: int = 200
    ) -> TemplateResponse:
        """Render a page of this team, with the user's rights in the context."""
        request = cast(TeamRequest, self.request)
        shared = {
            "team": request.team,
            "membership": request.membership,
            "may_edit": request.principal.has_role("editor"),
            "is_owner": request.principal.has_role("owner"),
        }
        return super().page(template, {**shared, **(context or {})}, status=status)

    def refuse(self, request: TeamRequest, needed: str) -> TemplateResponse:
        """Respond with 403, which role is needed, and who can assign it."""
        owners = request.team.memberships.filter(role="owner").select_related("user")
        context = {"needed": needed, "owners": owners}
        return self.page("portal/forbidden.html", context, status=403)


def principal_of(user: AbstractBaseUser) -> Principal:
    """The user, without a team."""
    return Principal(f"user:{user.get_username()}")


def membership_of(user: User, slug: str) -> Membership:
    """The user's membership in a team. Raises Http404 for non-members, as for unknown teams."""
    memberships = Membership.objects.select_related("team")
    membership = memberships.filter(user=user, team__slug=slug).first()
    if membership is None:
        raise Http404(f"There is no team {slug}.")
    return membership
