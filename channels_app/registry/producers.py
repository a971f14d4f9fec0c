"""Register a producer: create it, replace its settings or change some of them (S0-11)."""

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError

from channels_app.core import fields, names, settings
from channels_app.core.errors import FieldError, Invalid, NotFound, Refused
from channels_app.core.fields import Field
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import transactions
from channels_app.models import Producer, Team
from channels_app.registry.configuration import Resource, WriteResult, assign

FIELDS: dict[str, Field] = {
    "description": settings.description,
    "team": Field(
        fields.nullable(fields.slug), kept=True, help="Its owner. A PUT without it keeps the value."
    ),
    "default_priority": Field(
        fields.whole(0, 9), default=4, help="Priority of messages sent without one."
    ),
    "max_priority": Field(
        fields.whole(0, 9), default=9, help="Messages with a higher priority are refused (422)."
    ),
    "rate_limit": Field(settings.rate_limit, help="Messages per second; 429 above it."),
    "disabled": Field(
        fields.boolean, kept=True, help="Refuse its keys. A PUT without it keeps the value."
    ),
}
OF_TEAM = {name: FIELDS[name] for name in ("description", "default_priority")}
"""Fields that a team may set itself; the limits are set by operators."""
MAX_OF_TEAM = 100


def put(
    slug: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[Producer]:
    """Create the producer or replace its settings; writing the same values again changes nothing.

    Raises Invalid and PreconditionFailed.
    """
    return _register(slug, values, actor, condition, reason, partial=False)


def patch(
    slug: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[Producer]:
    """Change the given settings of an existing producer.

    Raises Invalid, NotFound and PreconditionFailed.
    """
    return _register(slug, values, actor, condition, reason, partial=True)


def make_within(
    team: str, name: str, values: Mapping[str, Any], *, actor: str
) -> WriteResult[Producer]:
    """Create a producer of a team, named ``team.name``. It has no rights until it has a key.

    Raises Invalid, NotFound, and Refused if the name is taken or the team has too many.
    """
    slug = f"{team}.{name}"
    if fault := names.slug(name) or names.slug(slug):
        raise Invalid.of([FieldError("name", fault)])
    wanted = fields.clean(OF_TEAM, values, partial=False) | {"team": team}
    try:
        return transactions.run(lambda: _make(team, slug, wanted, actor))
    except IntegrityError:
        # Two at the same time: the unique key decides.
        raise _taken(slug) from None


def change_within(
    team: str,
    slug: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Precondition = ALWAYS,
) -> WriteResult[Producer]:
    """As ``patch``, for a team's own producer and the fields that a team may set.

    Raises Invalid, NotFound and PreconditionFailed.
    """
    wanted = fields.clean(OF_TEAM, values, partial=True)

    def work() -> WriteResult[Producer]:
        # Locked, so that it cannot change teams before it is written.
        if not Producer.objects.select_for_update().filter(slug=slug, team__slug=team).first():
            raise _unknown(slug)
        return _write(slug, wanted, actor, condition, "", create=False)

    return transactions.run(work)


def describe(producer: Producer) -> dict[str, Any]:
    """The producer's settings in the form in which they are written."""
    limited = producer.rate_per_second
    return {
        "description": producer.description,
        "team": producer.team.slug if producer.team else None,
        "default_priority": producer.default_priority,
        "max_priority": producer.max_priority,
        "rate_limit": {"per_second": limited, "burst": producer.rate_burst} if limited else None,
        "disabled": producer.disabled,
    }


def _register(
    slug: str,
    values: Mapping[str, Any],
    actor: str,
    condition: Precondition,
    reason: str,
    *,
    partial: bool,
) -> WriteResult[Producer]:
    if fault := names.slug(slug):
        raise Invalid.of([FieldError("producer", fault)])
    wanted = fields.clean(FIELDS, values, partial=partial)
    return transactions.run(
        lambda: _write(slug, wanted, actor, condition, reason, create=not partial),
        on_collision=lambda: None,
    )


def _make(team: str, slug: str, wanted: dict[str, Any], actor: str) -> WriteResult[Producer]:
    # Locked, so that two concurrent requests cannot both create the last one allowed.
    owner = Team.objects.select_for_update().filter(slug=team).first()
    if owner is None:
        raise NotFound("unknown_team", f"There is no team {team}.")
    if owner.producers.count() >= MAX_OF_TEAM:
        raise Refused(f"The team has {MAX_OF_TEAM} producers; ask an operator for more.")
    if Producer.objects.filter(slug=slug).exists():
        raise _taken(slug)
    return _write(slug, wanted, actor, ALWAYS, "", create=True)


def _taken(slug: str) -> Refused:
    return Refused(f"There is a producer {slug} already.", field="name")


def _unknown(slug: str) -> NotFound:
    return NotFound("unknown_producer", f"There is no producer {slug}.")


def _write(
    slug: str,
    wanted: dict[str, Any],
    actor: str,
    condition: Precondition,
    reason: str,
    *,
    create: bool,
) -> WriteResult[Producer]:
    found = Producer.objects.select_for_update().filter(slug=slug).first()
    if found is None and not create:
        raise _unknown(slug)
    producer = found or Producer(slug=slug)
    return _RESOURCE.save(
        producer, wanted, f"producer:{slug}", actor=actor, condition=condition, reason=reason
    )


def _assign(producer: Producer, wanted: Mapping[str, Any]) -> None:
    values = dict(wanted)
    if "team" in values:
        slug = values.pop("team")
        team = Team.objects.filter(slug=slug).first() if slug else None
        if slug and team is None:
            raise Invalid.of([FieldError("team", f"There is no team {slug}.")])
        producer.team = team
    if "rate_limit" in values:
        rate = values.pop("rate_limit") or {"per_second": None, "burst": 100}
        producer.rate_per_second, producer.rate_burst = rate["per_second"], rate["burst"]
    assign(producer, values)
    if producer.default_priority > producer.max_priority:
        fault = "The default must not be above max_priority."
        raise Invalid.of([FieldError("default_priority", fault)])


_RESOURCE = Resource("producer", "producer", describe, _assign, lambda producer: producer.team_id)
