"""Accept an invitation: its holder becomes a member, and the link is used up."""

from django.contrib.auth.models import User

from channels_app import clock, transactions
from channels_app.errors import Refused
from channels_app.models import AuditEntry, Invitation, Membership
from channels_app.rules import invitations

USELESS = "This invitation has been used, has ended or was taken back. Ask for a new one."


def waiting(token: str) -> Invitation | None:
    """The invitation that a link leads to, as long as somebody may use it."""
    digest = invitations.digest(token)
    if digest is None:
        return None
    known = Invitation.objects.select_related("team").filter(digest=digest)
    return known.filter(accepted_at=None, revoked_at=None, expires_at__gt=clock.now()).first()


def accept(token: str, *, user: User, actor: str) -> Membership:
    """Make the person a member. Raises Refused; a member's click uses nothing up."""
    return transactions.run(lambda: _accept(token, user, actor))


def _accept(token: str, user: User, actor: str) -> Membership:
    found = waiting(token)
    # Whoever comes second waits here, and then finds it used.
    locked = Invitation.objects.select_for_update().filter(pk=found.pk) if found else None
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
        actor,
        "invitation.accept",
        f"membership:{team.slug}/{user.get_username()}",
        team_id=team.pk,
        after={"role": membership.role, "invitation": invitation.pk, "by": invitation.invited_by},
    )
    return membership
