"""Let people join a team by an invitation, or create one."""

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables

from channels_app.core.errors import BrokerError
from channels_app.portal.access import PersonRequest, PersonView, principal_of
from channels_app.portal.forms import TeamForm, tried
from channels_app.registry import teams


@method_decorator(never_cache, name="dispatch")
@method_decorator(sensitive_variables("token"), name="dispatch")
class JoinView(View):
    """The page of an invitation's link. It asks first, so that opening it does not use it up."""

    def get(self, request: HttpRequest, token: str) -> HttpResponse:
        """Show the team and the role; offer to create an account."""
        invitation = teams.waiting_invitation(token)
        context = {"invitation": invitation, "useless": teams.USELESS}
        status = 200 if invitation else 404
        return TemplateResponse(request, "portal/join.html", context, status=status)

    def post(self, request: HttpRequest, token: str) -> HttpResponse:
        """Join."""
        user = request.user
        if not isinstance(user, User):
            return redirect("portal:join", token)
        try:
            membership = teams.accept_invitation(token, user=user, principal=principal_of(user))
        except BrokerError as refused:
            messages.error(request, refused.detail)
            return redirect("portal:choose")
        messages.success(request, f"You are {membership.role} of {membership.team.name} now.")
        return redirect("portal:home", membership.team.slug)


class FoundView(PersonView):
    """Create a team, if the user may."""

    def enter(self, request: PersonRequest, *args: str, **kwargs: str) -> HttpResponseBase:
        """Check that the user may create teams. Raises PermissionDenied."""
        if not may_found(request.user):
            raise PermissionDenied("Only operators create teams here. Ask them for one.")
        return super().enter(request, *args, **kwargs)

    def get(self, request: PersonRequest) -> HttpResponse:
        """Show the form."""
        return self.page("portal/found.html", {"form": TeamForm()})

    def post(self, request: PersonRequest) -> HttpResponse:
        """Create the team."""
        form = TeamForm(request.POST)
        team = tried(
            form,
            lambda: teams.found(form.values(), founder=request.user, principal=request.principal),
        )
        if team is None:
            return self.page("portal/found.html", {"form": form}, status=422)
        return redirect("portal:home", team.slug)


def may_found(user: User) -> bool:
    """True for everybody with open sign-up, else for users with the permission."""
    return bool(settings.SIGNUP == "open") or user.has_perm("channels_app.add_team")
