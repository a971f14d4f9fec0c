"""Register a producer: create it, replace its settings or change some of them (S0-11)."""

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError

from channels_app.access.principal import Principal
from channels_app.core import names
from channels_app.core.errors import FieldError, Invalid, NotFound, Refused
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import transactions
from channels_app.models import Producer, Team
from channels_app.registry.resource import Resource, WriteResult
from channels_app.serializers.producers import OwnProducerSerializer, ProducerSerializer

MAX_OF_TEAM = 100


RESOURCE: Resource[Producer] = Resource(
    "producer", Producer, ProducerSerializer, team_id=lambda producer: producer.team_id
)
put, patch = RESOURCE.put, RESOURCE.patch


def make_within(
    team: str, name: str, values: Mapping[str, Any], *, principal: Principal
) -> WriteResult[Producer]:
    """Create a producer of a team, named ``team.name``. It has no rights until it has a key.

    Raises Invalid, NotFound, and Refused if the name is taken or the team has too many.
    """
    slug = f"{team}.{name}"
    if fault := names.slug(name) or names.slug(slug):
        raise Invalid.of([FieldError("name", fault)])
    OwnProducerSerializer(data=values).is_valid(raise_exception=True)

    def work() -> WriteResult[Producer]:
        # Locked, so that two concurrent requests cannot both create the last one allowed.
        owner = Team.objects.select_for_update().filter(slug=team).first()
        if owner is None:
            raise NotFound("unknown_team", f"There is no team {team}.")
        if owner.producers.count() >= MAX_OF_TEAM:
            raise Refused(f"The team has {MAX_OF_TEAM} producers; ask an operator for more.")
        if Producer.objects.filter(slug=slug).exists():
            raise _taken(slug)
        return RESOURCE.register(slug, {**values, "team": team}, partial=False, principal=principal)

    try:
        return transactions.run(work)
    except IntegrityError:
        # Two at the same time: the unique key decides.
        raise _taken(slug) from None


def change_within(
    team: str,
    slug: str,
    values: Mapping[str, Any],
    *,
    principal: Principal,
    condition: Precondition = ALWAYS,
) -> WriteResult[Producer]:
    """As ``patch``, for a team's own producer and the fields that a team may set.

    Raises Invalid, NotFound and PreconditionFailed.
    """
    OwnProducerSerializer(data=values, partial=True).is_valid(raise_exception=True)

    def work() -> WriteResult[Producer]:
        # Locked, so that it cannot change teams before it is written.
        if not Producer.objects.select_for_update().filter(slug=slug, team__slug=team).first():
            raise RESOURCE.unknown(slug)
        return RESOURCE.register(
            slug, values, partial=True, principal=principal, condition=condition
        )

    return transactions.run(work)


def _taken(slug: str) -> Refused:
    return Refused(f"There is a producer {slug} already.", field="name")
