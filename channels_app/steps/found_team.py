"""Found a team: it begins with its founder as the only owner."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError

from channels_app import transactions
from channels_app.errors import Invalid, Refused
from channels_app.models import AuditEntry, Membership, Team
from channels_app.rules import fields
from channels_app.rules.fields import Field, InvalidValues

FIELDS: dict[str, Field] = {
    "slug": Field(fields.slug, required=True),
    "name": Field(fields.text(200), required=True),
}
TAKEN = "Another team has this name already."


def found(values: Mapping[str, Any], *, founder: User, actor: str) -> Team:
    """Make the team. Raises Invalid, and Refused when the name is taken."""
    try:
        wanted = fields.clean(FIELDS, values, partial=False)
    except InvalidValues as bad:
        raise Invalid.of(bad) from None
    try:
        return transactions.run(lambda: _found(wanted, founder, actor))
    except IntegrityError:
        # Two at once: the database decides.
        raise Refused(TAKEN, field="slug") from None


def _found(wanted: dict[str, Any], founder: User, actor: str) -> Team:
    if Team.objects.filter(slug=wanted["slug"]).exists():
        raise Refused(TAKEN, field="slug")
    team = Team.objects.create(**wanted)
    Membership.objects.create(team=team, user=founder, role=Membership.Role.OWNER)
    AuditEntry.record(actor, "team.create", f"team:{team.slug}", team_id=team.pk, after=wanted)
    return team
