"""Show and manage a team: its start page, members, invitations and audit log."""

import json
import logging
from collections import Counter as Tally
from smtplib import SMTPException
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.mail import send_mail
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables

from channels_app.conf import conf
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, Invitation, QuotaUsage
from channels_app.portal.access import (
    PersonRequest,
    PersonView,
    TeamRequest,
    TeamView,
    principal_of,
)
from channels_app.portal.forms import InviteForm, RoleForm, TeamForm, tried
from channels_app.portal.tags import teams_of
from channels_app.registry import api_keys, teams

PAGE = 50
log = logging.getLogger(__name__)


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


class MembersView(TeamView):
    """Members with their roles, and open invitations."""

    section = "members"

    def get(self, request: TeamRequest) -> HttpResponse:
        """List them."""
        members = request.team.memberships.select_related("user").order_by("user__username")
        waiting = request.team.invitations.filter(
            accepted_at=None, revoked_at=None, expires_at__gt=clock.now()
        )
        context = {
            "rows": [(member, RoleForm(initial={"role": member.role})) for member in members],
            "waiting": waiting.order_by("expires_at"),
        }
        return self.page("portal/members.html", context)


class InviteView(TeamView):
    """Invite a person."""

    section = "members"
    reader = writer = "owner"

    def get(self, request: TeamRequest) -> HttpResponse:
        """Show the form."""
        return self.page("portal/invite.html", {"form": InviteForm()})

    @sensitive_variables()
    def post(self, request: TeamRequest) -> HttpResponse:
        """Create the invitation; only this one page shows its link."""
        form = InviteForm(request.POST)
        done = tried(
            form,
            lambda: teams.invite(
                request.team.slug,
                form.cleaned_data,
                principal=request.principal,
                inviter=request.user.get_username(),
            ),
        )
        if done is None:
            return self.page("portal/invite.html", {"form": form}, status=422)
        link = settings.PUBLIC_URL + reverse("portal:join", args=done.secrets)
        return self.page("portal/invited.html", self._told(request, done.row, link))

    def _told(self, request: TeamRequest, invitation: Invitation, link: str) -> dict[str, Any]:
        context = {"invitation": invitation, "link": link, "team": request.team}
        was_sent = bool(invitation.email) and _mail(
            invitation.email,
            f"{request.user.get_username()} invites you to {request.team.name}",
            "portal/mail/invitation.txt",
            context,
        )
        return {**context, "was_sent": was_sent}


class MemberView(TeamView):
    """Change or remove a member, as an owner."""

    section = "members"
    writer = "owner"

    def post(self, request: TeamRequest, member: int, action: str) -> HttpResponse:
        """Change the role, or remove the member."""
        slug, who = request.team.slug, request.principal
        try:
            if action == "remove":
                gone = teams.end_membership(slug, member, principal=who)
                messages.success(request, f"{gone.user.get_username()} is no longer a member.")
            else:
                role = request.POST.get("role", "")
                changed = teams.set_role(slug, member, role, principal=who)
                messages.success(request, f"{changed.user.get_username()} is {role} now.")
        except BrokerError as refused:
            messages.error(request, refused.detail)
        return redirect("portal:members", slug)


class LeaveView(TeamView):
    """Let a member of any role leave the team."""

    section = "members"
    writer = "viewer"

    def post(self, request: TeamRequest) -> HttpResponse:
        """Leave."""
        try:
            teams.end_membership(
                request.team.slug, request.membership.pk, principal=request.principal
            )
        except BrokerError as refused:
            messages.error(request, refused.detail)
            return redirect("portal:members", request.team.slug)
        messages.success(request, f"You have left {request.team.name}.")
        return redirect("portal:choose")


class InvitationView(TeamView):
    """Revoke an open invitation."""

    section = "members"
    writer = "owner"

    def post(self, request: TeamRequest, invitation: int) -> HttpResponse:
        """Revoke it."""
        try:
            teams.revoke_invitation(request.team.slug, invitation, principal=request.principal)
        except BrokerError as refused:
            messages.error(request, refused.detail)
        else:
            messages.success(request, "The invitation is revoked. Its link no longer works.")
        return redirect("portal:members", request.team.slug)


class ValueChange(NamedTuple):
    """One value before and after; '' if there was none."""

    name: str
    before: str
    after: str


class AuditView(TeamView):
    """The team's entries, newest first, read in index order."""

    section = "audit"

    def get(self, request: TeamRequest) -> HttpResponse:
        """A page of entries; ``?before=`` is the last id of the previous page."""
        entries = AuditEntry.objects.filter(team_id=request.team.pk).order_by("-id")
        before = request.GET.get("before", "")
        is_further = before.isascii() and before.isdecimal() and len(before) < 19
        if is_further:
            entries = entries.filter(id__lt=int(before))
        fetched = list(entries[: PAGE + 1])
        rows = [(entry, changes(entry)) for entry in fetched[:PAGE]]
        older = rows[-1][0].pk if len(fetched) > PAGE else None
        context = {"rows": rows, "older": older, "is_further": is_further}
        return self.page("portal/audit.html", context)


def changes(entry: AuditEntry) -> list[ValueChange]:
    """All changed values of an entry."""
    before, after = entry.before or {}, entry.after or {}
    names = [*before, *(name for name in after if name not in before)]
    compared = [ValueChange(name, _shown(before, name), _shown(after, name)) for name in names]
    return [change for change in compared if change.before or change.after]


def _mail(to: str, subject: str, template: str, context: dict[str, Any]) -> bool:
    """Whether the mail was handed over to the server; False also if mail is not configured."""
    if not settings.CAN_MAIL:
        return False
    text = render_to_string(template, context)
    try:
        return bool(send_mail(f"[Hookstation] {subject}", text, None, [to]))
    except (OSError, SMTPException) as error:
        log.warning("mail could not be sent: %s", error)
        return False


def _shown(side: Any, name: str) -> str:
    if name not in side or side[name] in (None, ""):
        return ""
    value = side[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
