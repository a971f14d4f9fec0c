"""Register a team: create it without members, replace its settings or change some of them."""

from collections.abc import Mapping
from typing import Any

from channels_app import transactions
from channels_app.errors import Invalid, NotFound, PreconditionFailed
from channels_app.models import AuditEntry, Team
from channels_app.rules import fields, names, settings
from channels_app.rules.fields import Field, FieldError, InvalidValues
from channels_app.rules.preconditions import ALWAYS, Precondition
from channels_app.rules.write_result import WriteResult

FIELDS: dict[str, Field] = {
    "name": Field(
        fields.text(200), kept=True, help="For people. A new team without one has its slug."
    ),
    "max_waiting_messages": settings.max_waiting_messages,
    "max_waiting_bytes": settings.max_waiting_bytes,
}
"""What may be written; null limits mean the installation's. They hold for what its producers
publish, on all channels together."""


def put(
    slug: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Precondition = ALWAYS,
) -> WriteResult[Team]:
    """Create the team or replace its settings; the same values twice change nothing.

    Raises Invalid and Stale.
    """
    return _register(slug, values, actor, condition, partial=False)


def patch(
    slug: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Precondition = ALWAYS,
) -> WriteResult[Team]:
    """Change the given settings of an existing team. Raises Invalid, NotFound and Stale."""
    return _register(slug, values, actor, condition, partial=True)


def describe(team: Team) -> dict[str, Any]:
    """The team's settings as they are written."""
    return {name: getattr(team, name) for name in FIELDS}


def _register(
    slug: str, values: Mapping[str, Any], actor: str, condition: Precondition, *, partial: bool
) -> WriteResult[Team]:
    if fault := names.slug(slug):
        raise Invalid.of(InvalidValues([FieldError("team", fault)]))
    try:
        wanted = fields.clean(FIELDS, values, partial=partial)
    except InvalidValues as bad:
        raise Invalid.of(bad) from None
    return transactions.run(
        lambda: _write(slug, wanted, actor, condition, create=not partial),
        on_collision=lambda: None,
    )


def _write(
    slug: str, wanted: dict[str, Any], actor: str, condition: Precondition, *, create: bool
) -> WriteResult[Team]:
    found = Team.objects.select_for_update().filter(slug=slug).first()
    if found is None and not create:
        raise NotFound("unknown_team", f"There is no team {slug}.")
    if not condition.holds(found.version if found else None):
        raise PreconditionFailed("stale_version", "The team has changed since; read it again.")
    team = found or Team(slug=slug, name=slug)
    before = describe(team) if found else None
    for name, value in wanted.items():
        setattr(team, name, value)
    after = describe(team)
    if before == after:
        return WriteResult(team)
    team.save()
    AuditEntry.record(
        actor,
        "team.update" if found else "team.create",
        f"team:{slug}",
        team_id=team.pk,
        before=before,
        after=after,
    )
    return WriteResult(team, created=found is None, changed=True)
