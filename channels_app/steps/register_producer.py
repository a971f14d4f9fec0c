"""Register a producer: create it, replace its settings or change some of them (S0-11)."""

from collections.abc import Mapping
from typing import Any

from channels_app import transactions
from channels_app.errors import Invalid, NotFound, Stale
from channels_app.models import AuditEntry, Producer, Team
from channels_app.rules import fields, names, settings
from channels_app.rules.conditions import ALWAYS, Condition
from channels_app.rules.fields import BadValues, Fault, Field
from channels_app.rules.registered import Registered

FIELDS: dict[str, Field] = {
    "description": settings.description,
    "team": Field(
        fields.nullable(fields.slug), kept=True, help="Who owns it. PUT without it leaves it."
    ),
    "default_priority": Field(
        fields.whole(0, 9), default=4, help="Of messages that name none; 0 is the lowest."
    ),
    "max_priority": Field(fields.whole(0, 9), default=9, help="Higher wishes are refused."),
    "rate_limit": Field(settings.rate_limit, help="Messages per second; over it 429."),
    "disabled": Field(
        fields.boolean, kept=True, help="Its keys open nothing. PUT without it leaves it as it is."
    ),
}


def put(
    slug: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Condition = ALWAYS,
    reason: str = "",
) -> Registered[Producer]:
    """Create the producer or replace its settings; the same values twice change nothing.

    Raises Invalid and Stale.
    """
    return _register(slug, values, actor, condition, reason, partial=False)


def patch(
    slug: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Condition = ALWAYS,
    reason: str = "",
) -> Registered[Producer]:
    """Change the given settings of an existing producer. Raises Invalid, NotFound and Stale."""
    return _register(slug, values, actor, condition, reason, partial=True)


def describe(producer: Producer) -> dict[str, Any]:
    """The producer's settings as they are written."""
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
    condition: Condition,
    reason: str,
    *,
    partial: bool,
) -> Registered[Producer]:
    if fault := names.slug(slug):
        raise Invalid.of(BadValues([Fault("producer", fault)]))
    try:
        wanted = fields.clean(FIELDS, values, partial=partial)
    except BadValues as bad:
        raise Invalid.of(bad) from None
    return transactions.run(
        lambda: _write(slug, wanted, actor, condition, reason, create=not partial),
        on_collision=lambda: None,
    )


def _write(
    slug: str,
    wanted: dict[str, Any],
    actor: str,
    condition: Condition,
    reason: str,
    *,
    create: bool,
) -> Registered[Producer]:
    found = Producer.objects.select_for_update().filter(slug=slug).first()
    if found is None and not create:
        raise NotFound("unknown_producer", f"There is no producer {slug}.")
    if not condition.holds(found.version if found else None):
        raise Stale("stale_version", "The producer has changed since; read it again.")
    producer = found or Producer(slug=slug)
    before = describe(producer) if found else None
    former_team_id = producer.team_id
    _set(producer, dict(wanted))
    after = describe(producer)
    if before == after:
        return Registered(producer)
    producer.save()
    action = "producer.update" if found else "producer.create"
    AuditEntry.record(
        actor,
        action,
        f"producer:{slug}",
        team_id=producer.team_id,
        former_team_id=former_team_id,
        reason=reason,
        before=before,
        after=after,
    )
    return Registered(producer, created=found is None, changed=True)


def _set(producer: Producer, values: dict[str, Any]) -> None:
    if "team" in values:
        slug = values.pop("team")
        team = Team.objects.filter(slug=slug).first() if slug else None
        if slug and team is None:
            raise Invalid.of(BadValues([Fault("team", f"There is no team {slug}.")]))
        producer.team = team
    if "rate_limit" in values:
        rate = values.pop("rate_limit") or {"per_second": None, "burst": 100}
        producer.rate_per_second, producer.rate_burst = rate["per_second"], rate["burst"]
    for name, value in values.items():
        setattr(producer, name, value)
    if producer.default_priority > producer.max_priority:
        fault = "The default must not be above max_priority."
        raise Invalid.of(BadValues([Fault("default_priority", fault)]))
