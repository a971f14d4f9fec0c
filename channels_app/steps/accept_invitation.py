"""Accept an invitation: its holder becomes a member, and the link is used up."""

from django.contrib.auth.models import User
from django.db import IntegrityError

from channels_app import clock, transactions
from channels_app.errors import Refused
from channels_app.models import AuditEntry, Invitation, Membership
from channels_app.rules import invitations

USELESS = "This invitation has been used, has ended or was revoked. Ask for a new one."

MAX_ACCOUNTS = 3
"""That one link makes: it is for one person, who may begin anew."""
SIGNED_UP = "invitation.sign_up"


def waiting(token: str) -> Invitation | None:
    """The invitation that a link leads to, as long as somebody may use it."""
    digest = invitations.digest(token)
    if digest is None:
        return None
    known = Invitation.objects.select_related("team").filter(digest=digest)
    return known.filter(accepted_at=None, revoked_at=None, expires_at__gt=clock.now()).first()


def accept(token: str, *, user: User, actor: str) -> Membership:
    """Make the person a member. Raises Refused; a member's click uses nothing up."""
    try:
        return transactions.run(lambda: _accept(token, user, actor))
    except IntegrityError:
        # The same person by two links at once: the database decides, and the other link waits on.
        raise Refused("You belong to this team already.") from None


def lets_sign_up(token: str) -> bool:
    """Whether who holds the link may make an account: one that leaks is no open door."""
    invitation = waiting(token)
    if invitation is None:
        return False
    made = AuditEntry.objects.filter(target=f"invitation:{invitation}", action=SIGNED_UP)
    return made.count() < MAX_ACCOUNTS


def note_sign_up(token: str, *, actor: str) -> None:
    """Count an account that was made by way of the link, where the team's owners see it."""
    invitation = waiting(token)
    if invitation is not None:
        target = f"invitation:{invitation}"
        AuditEntry.record(actor, SIGNED_UP, target, team_id=invitation.team_id)


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
