"""Manage members and invitations of a team."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.debug import sensitive_variables

from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.models import Invitation
from channels_app.portal import mail
from channels_app.portal.access import TeamRequest, TeamView
from channels_app.portal.forms import InviteForm, RoleForm, tried
from channels_app.registry import teams


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
        was_sent = bool(invitation.email) and mail.send(
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
