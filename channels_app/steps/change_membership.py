"""Change a membership: another role, or none. A team never loses its last owner."""

from channels_app import clock, transactions
from channels_app.errors import Invalid, Refused
from channels_app.models import AuditEntry, Invitation, Membership, Team
from channels_app.rules import roles
from channels_app.rules.fields import FieldError, InvalidValues

LAST = "The team would have no owner. Make somebody else an owner first."


def set_role(team: str, membership_id: int, role: str, *, actor: str) -> Membership:
    """Give a member another role. Raises Invalid and Refused."""
    if role not in roles.ROLES:
        raise Invalid.of(
            InvalidValues([FieldError("role", f"Choose from {', '.join(roles.ROLES)}.")])
        )
    return transactions.run(lambda: _set_role(team, membership_id, role, actor))


def end(team: str, membership_id: int, *, actor: str) -> Membership:
    """Take a member out, or let them leave: what they made stays the team's. Raises Refused."""
    return transactions.run(lambda: _end(team, membership_id, actor))


def _set_role(team: str, membership_id: int, role: str, actor: str) -> Membership:
    membership = _locked(team, membership_id)
    before = membership.role
    if role == before:
        return membership
    _check_owner_stays(membership)
    membership.role = role
    membership.save(update_fields=["role"])
    AuditEntry.record(
        actor,
        "membership.change",
        _target(membership),
        team_id=membership.team_id,
        before={"role": before},
        after={"role": role},
    )
    if before == Membership.Role.OWNER:
        _take_invitations_back(membership, actor)
    return membership


def _end(team: str, membership_id: int, actor: str) -> Membership:
    membership = _locked(team, membership_id)
    _check_owner_stays(membership)
    AuditEntry.record(
        actor,
        "membership.end",
        _target(membership),
        team_id=membership.team_id,
        before={"role": membership.role},
    )
    _take_invitations_back(membership, actor)
    membership.delete()
    return membership


def _locked(slug: str, membership_id: int) -> Membership:
    # The team's row and not the member's: two owners who leave at once must see each other.
    team = Team.objects.select_for_update().get(slug=slug)
    found = team.memberships.select_related("user", "team").filter(pk=membership_id).first()
    if found is None:
        raise Refused("This person is no member any more.")
    return found


def _check_owner_stays(membership: Membership) -> None:
    if membership.role != Membership.Role.OWNER:
        return
    owners = Membership.objects.filter(
        team=membership.team_id, role=Membership.Role.OWNER, user__is_active=True
    )
    if not owners.exclude(pk=membership.pk).exists():
        raise Refused(LAST)


def _take_invitations_back(membership: Membership, actor: str) -> None:
    # One that they made for themselves would bring them back, as owner.
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
        AuditEntry.record(actor, "invitation.revoke", target, team_id=membership.team_id)


def _target(membership: Membership) -> str:
    return f"membership:{membership.team.slug}/{membership.user.get_username()}"
