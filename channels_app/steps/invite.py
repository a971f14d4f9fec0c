"""Invite into a team by a link that works once; or take an invitation back."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from channels_app import clock, transactions
from channels_app.errors import Invalid, Refused
from channels_app.models import AuditEntry, Invitation, Team
from channels_app.rules import fields, invitations, roles, times
from channels_app.rules.fields import Field, InvalidValues
from channels_app.rules.write_result import WriteResult

MAX_OPEN = 100
"""Invitations of one team that wait at one time."""
MAX_OF_TEAM = 100
MAX_OF_PERSON = 50
"""Made within a day: each may send mail to an address that never asked for it."""


def _address(value: str) -> str | None:
    try:
        if value:
            validate_email(value)
    except ValidationError:
        return "This is no e-mail address."
    return None


def _days(value: object) -> int:
    number = fields.whole_number(value)
    if number not in invitations.DAYS:
        raise ValueError(f"Choose from {', '.join(map(str, invitations.DAYS))} days.")
    return number


FIELDS: dict[str, Field] = {
    "role": Field(fields.choice(*roles.ROLES), default="viewer"),
    "email": Field(fields.text(254, check=_address), default=""),
    "days": Field(_days, default=7),
}


def invite(
    team: str, values: Mapping[str, Any], *, actor: str, inviter: str
) -> WriteResult[Invitation]:
    """Make an invitation; ``secrets`` holds what the link ends in, once.

    Raises Invalid, and Refused when too many wait already or were made in the last day.
    """
    try:
        wanted = fields.clean(FIELDS, values, partial=False)
    except InvalidValues as bad:
        raise Invalid.of(bad) from None
    return transactions.run(lambda: _invite(team, wanted, actor, inviter))


def revoke(team: str, invitation_id: int, *, actor: str) -> None:
    """Make a waiting invitation useless. Raises Refused when it waits no more."""
    transactions.run(lambda: _revoke(team, invitation_id, actor))


def _invite(
    team_slug: str, wanted: dict[str, Any], actor: str, inviter: str
) -> WriteResult[Invitation]:
    team = Team.objects.select_for_update().get(slug=team_slug)
    now = clock.now()
    waiting = team.invitations.filter(accepted_at=None, revoked_at=None, expires_at__gt=now)
    if waiting.count() >= MAX_OPEN:
        raise Refused(f"{MAX_OPEN} invitations wait already; take some back first.")
    made = Invitation.objects.filter(created_at__gt=now - timedelta(days=1))
    if made.filter(team=team).count() >= MAX_OF_TEAM:
        raise Refused(f"{MAX_OF_TEAM} invitations were made within a day; go on tomorrow.")
    if made.filter(invited_by=inviter).count() >= MAX_OF_PERSON:
        raise Refused(f"You made {MAX_OF_PERSON} invitations within a day; go on tomorrow.")
    token = invitations.generate()
    invitation = Invitation.objects.create(
        team=team,
        role=wanted["role"],
        email=wanted["email"],
        digest=invitations.digest(token) or "",
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
    AuditEntry.record(actor, "invitation.create", target, team_id=team.pk, after=after)
    return WriteResult(invitation, created=True, changed=True, secrets=(token,))


def _revoke(team_slug: str, invitation_id: int, actor: str) -> None:
    mine = Invitation.objects.select_for_update().filter(team__slug=team_slug, id=invitation_id)
    invitation = mine.filter(accepted_at=None, revoked_at=None).first()
    if invitation is None:
        raise Refused("The invitation has been used or revoked already.")
    invitation.revoked_at = clock.now()
    invitation.save(update_fields=["revoked_at"])
    target = f"invitation:{invitation}"
    AuditEntry.record(actor, "invitation.revoke", target, team_id=invitation.team_id)
