"""Create teams, invite people and change memberships.

A team begins with its founder as the only owner, and never loses its last owner. An invitation is a
link that works once.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError

from channels_app.access.principal import Principal
from channels_app.core import access, times
from channels_app.core.errors import FieldError, Invalid, Refused
from channels_app.database import clock, transactions
from channels_app.models import ApiKey, AuditEntry, Channel, Invitation, Membership, Team
from channels_app.registry.resource import Resource, WriteResult, assign
from channels_app.serializers.teams import InvitationSerializer, NewTeamSerializer, TeamSerializer

TAKEN = "Another team has this name already."
MAX_OPEN = 100
"""Maximum number of open invitations of a team."""
MAX_OF_TEAM = 100
MAX_OF_PERSON = 50
"""Maximum per team and per person within a day, since invitations send mail to others."""
USELESS = "This invitation has been used, has expired or was revoked. Ask for a new one."
MAX_ACCOUNTS = 3
"""Maximum number of accounts created by one link. It is for one person, who may start over."""
SIGNED_UP = "invitation.sign_up"
LAST = "The team would have no owner. Make another member an owner first."


def found(values: Mapping[str, Any], *, founder: User, principal: Principal) -> Team:
    """Create the team. Raises Invalid, and Refused if the name is taken."""
    checked = NewTeamSerializer(data=values)
    checked.is_valid(raise_exception=True)
    try:
        return transactions.run(lambda: _found(checked.validated_data, founder, principal))
    except IntegrityError:
        # Two at the same time: the unique key decides.
        raise Refused(TAKEN, field="slug") from None


def _assign(team: Team, values: Mapping[str, Any]) -> None:
    assign(team, {"name": team.name or team.slug} | dict(values))


RESOURCE: Resource[Team] = Resource("team", Team, TeamSerializer, _assign, lambda team: team.pk)
put, patch = RESOURCE.put, RESOURCE.patch


def invite(
    team: str, values: Mapping[str, Any], *, principal: Principal, inviter: str
) -> WriteResult[Invitation]:
    """Create an invitation; ``secrets`` holds the secret part of the link, once.

    Raises Invalid, and Refused if too many are open or were created in the last day.
    """
    checked = InvitationSerializer(data=values)
    checked.is_valid(raise_exception=True)
    return transactions.run(lambda: _invite(team, checked.validated_data, principal, inviter))


def revoke_invitation(team: str, invitation_id: int, *, principal: Principal) -> None:
    """Revoke an open invitation. Raises Refused if it is used or revoked already."""
    transactions.run(lambda: _revoke_invitation(team, invitation_id, principal))


def waiting_invitation(token: str) -> Invitation | None:
    """The invitation of a link, as long as it can be used; else None."""
    digest = access.digest(token)
    if digest is None:
        return None
    invitations = Invitation.objects.select_related("team").filter(digest=digest)
    return invitations.filter(accepted_at=None, revoked_at=None, expires_at__gt=clock.now()).first()


def accept_invitation(token: str, *, user: User, principal: Principal) -> Membership:
    """Make the person a member.

    Raises Refused; if they are a member already, the link stays valid.
    """
    try:
        return transactions.run(lambda: _accept_invitation(token, user, principal))
    except IntegrityError:
        # The same person with two links at once: the unique key decides, and the other link stays.
        raise Refused("You belong to this team already.") from None


def lets_sign_up(token: str) -> bool:
    """Whether the link may create another account; the limit matters if the link leaks."""
    invitation = waiting_invitation(token)
    if invitation is None:
        return False
    sign_ups = AuditEntry.objects.filter(target=f"invitation:{invitation}", action=SIGNED_UP)
    return sign_ups.count() < MAX_ACCOUNTS


def note_sign_up(token: str, *, principal: Principal) -> None:
    """Record an account created by the link, in the audit log that the team's owners see."""
    invitation = waiting_invitation(token)
    if invitation is not None:
        target = f"invitation:{invitation}"
        AuditEntry.record(principal.actor, SIGNED_UP, target, team_id=invitation.team_id)


def set_role(team: str, membership_id: int, role: str, *, principal: Principal) -> Membership:
    """Give a member another role. Raises Invalid and Refused."""
    if role not in access.TEAM_RANKS:
        raise Invalid.of([FieldError("role", f"Choose from {', '.join(access.TEAM_RANKS)}.")])
    return transactions.run(lambda: _set_role(team, membership_id, role, principal))


def end_membership(team: str, membership_id: int, *, principal: Principal) -> Membership:
    """Remove a member, or let them leave; what they made stays the team's. Raises Refused."""
    return transactions.run(lambda: _end_membership(team, membership_id, principal))


def access_began(team_id: int, channel: Channel, now: datetime) -> datetime | None:
    """When the team got access; None if the channel shares its history with everybody.

    A team has access while a key of it is valid, and its members have access to each external
    channel. A team that loses access and regains it does not get the messages in between.
    """
    if channel.history == Channel.History.SHARED:
        return None
    return access.since(_spans(team_id, channel), now)


def _found(wanted: dict[str, Any], founder: User, principal: Principal) -> Team:
    if Team.objects.filter(slug=wanted["slug"]).exists():
        raise Refused(TAKEN, field="slug")
    team = Team.objects.create(**wanted)
    Membership.objects.create(team=team, user=founder, role=Membership.Role.OWNER)
    AuditEntry.record(
        principal.actor, "team.create", f"team:{team.slug}", team_id=team.pk, after=wanted
    )
    return team


def _invite(
    team_slug: str, wanted: dict[str, Any], principal: Principal, inviter: str
) -> WriteResult[Invitation]:
    team = Team.objects.select_for_update().get(slug=team_slug)
    now = clock.now()
    waiting = team.invitations.filter(accepted_at=None, revoked_at=None, expires_at__gt=now)
    if waiting.count() >= MAX_OPEN:
        raise Refused(f"{MAX_OPEN} invitations are open already; revoke some first.")
    recent = Invitation.objects.filter(created_at__gt=now - timedelta(days=1))
    if recent.filter(team=team).count() >= MAX_OF_TEAM:
        raise Refused(
            f"The team created {MAX_OF_TEAM} invitations within a day; try again tomorrow."
        )
    if recent.filter(invited_by=inviter).count() >= MAX_OF_PERSON:
        raise Refused(f"You created {MAX_OF_PERSON} invitations within a day; try again tomorrow.")
    token = access.generate()
    invitation = Invitation.objects.create(
        team=team,
        role=wanted["role"],
        email=wanted["email"],
        digest=access.digest(token) or "",
        invited_by=inviter,
        created_at=now,
        expires_at=now + timedelta(days=wanted["days"]),
    )
    after = {
        "role": invitation.role,
        "email": invitation.email,
        "expires_at": times.text(invitation.expires_at),
    }
    target = f"invitation:{invitation}"
    AuditEntry.record(principal.actor, "invitation.create", target, team_id=team.pk, after=after)
    return WriteResult(invitation, created=True, changed=True, secrets=(token,))


def _revoke_invitation(team_slug: str, invitation_id: int, principal: Principal) -> None:
    invitations = Invitation.objects.select_for_update().filter(
        team__slug=team_slug, id=invitation_id
    )
    invitation = invitations.filter(accepted_at=None, revoked_at=None).first()
    if invitation is None:
        raise Refused("The invitation has been used or revoked already.")
    invitation.revoked_at = clock.now()
    invitation.save(update_fields=["revoked_at"])
    target = f"invitation:{invitation}"
    AuditEntry.record(principal.actor, "invitation.revoke", target, team_id=invitation.team_id)


def _accept_invitation(token: str, user: User, principal: Principal) -> Membership:
    waiting = waiting_invitation(token)
    # A concurrent use waits for this lock, and then finds the invitation used.
    locked = Invitation.objects.select_for_update().filter(pk=waiting.pk) if waiting else None
    invitation = locked.filter(accepted_at=None, revoked_at=None).first() if locked else None
    if invitation is None:
        raise Refused(USELESS)
    team = invitation.team
    if Membership.objects.filter(team=team, user=user).exists():
        raise Refused(f"You belong to {team.name} already.")
    invitation.accepted_at = clock.now()
    invitation.save(update_fields=["accepted_at"])
    membership = Membership.objects.create(team=team, user=user, role=invitation.role)
    AuditEntry.record(
        principal.actor,
        "invitation.accept",
        f"membership:{team.slug}/{user.get_username()}",
        team_id=team.pk,
        after={"role": membership.role, "invitation": invitation.pk, "by": invitation.invited_by},
    )
    return membership


def _set_role(team: str, membership_id: int, role: str, principal: Principal) -> Membership:
    membership = _locked(team, membership_id)
    before = membership.role
    if role == before:
        return membership
    _check_owner_stays(membership)
    membership.role = role
    membership.save(update_fields=["role"])
    AuditEntry.record(
        principal.actor,
        "membership.change",
        _target(membership),
        team_id=membership.team_id,
        before={"role": before},
        after={"role": role},
    )
    if before == Membership.Role.OWNER:
        _take_invitations_back(membership, principal)
    return membership


def _locked(slug: str, membership_id: int) -> Membership:
    # Lock the team, not the membership: two owners who leave at once must see each other.
    team = Team.objects.select_for_update().get(slug=slug)
    membership = team.memberships.select_related("user", "team").filter(pk=membership_id).first()
    if membership is None:
        raise Refused("This person is not a member any more.")
    return membership


def _check_owner_stays(membership: Membership) -> None:
    if membership.role != Membership.Role.OWNER:
        return
    owners = Membership.objects.filter(
        team=membership.team_id, role=Membership.Role.OWNER, user__is_active=True
    )
    if not owners.exclude(pk=membership.pk).exists():
        raise Refused(LAST)


def _target(membership: Membership) -> str:
    return f"membership:{membership.team.slug}/{membership.user.get_username()}"


def _take_invitations_back(membership: Membership, principal: Principal) -> None:
    # With an open invitation of their own they could rejoin as owner.
    now = clock.now()
    waiting = Invitation.objects.select_for_update().filter(
        team=membership.team_id,
        invited_by=membership.user.get_username(),
        accepted_at=None,
        revoked_at=None,
        expires_at__gt=now,
    )
    for invitation in waiting.select_related("team"):
        invitation.revoked_at = now
        invitation.save(update_fields=["revoked_at"])
        target = f"invitation:{invitation}"
        AuditEntry.record(principal.actor, "invitation.revoke", target, team_id=membership.team_id)


def _end_membership(team: str, membership_id: int, principal: Principal) -> Membership:
    membership = _locked(team, membership_id)
    _check_owner_stays(membership)
    AuditEntry.record(
        principal.actor,
        "membership.end",
        _target(membership),
        team_id=membership.team_id,
        before={"role": membership.role},
    )
    _take_invitations_back(membership, principal)
    membership.delete()
    return membership


def _spans(team_id: int, channel: Channel) -> Iterator[tuple[datetime, datetime | None]]:
    is_open = channel.exposure == Channel.Exposure.EXTERNAL
    opened = channel.exposed_at or channel.created_at
    # Memberships have no date; members have access since both the team and the exposure exist.
    if is_open and Membership.objects.filter(team_id=team_id).exists():
        created = Team.objects.values_list("created_at", flat=True).get(id=team_id)
        yield max(created, opened), None
    keys = ApiKey.objects.filter(team_id=team_id)
    for key in keys | ApiKey.objects.filter(producer__team_id=team_id):
        ends = min((end for end in (key.expires_at, key.revoked_at) if end), default=None)
        if channel.slug in key.channels or key.reaches_all:
            yield key.created_at, ends
        elif is_open and not key.channels:
            yield max(key.created_at, opened), ends
