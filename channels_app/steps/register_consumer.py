"""Register a consumer on a channel: create, revive, replace or change it (S0-12, S1-15)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from channels_app import clock, inbound, sealing, transactions
from channels_app.conf import MAX_TIMEOUT_MS, conf
from channels_app.errors import Invalid, NotFound, Stale
from channels_app.models import AuditEntry, Channel, Consumer, ConsumerSecret, Team
from channels_app.rules import addresses, fields, filters, headers, names, settings
from channels_app.rules.conditions import ALWAYS, Condition
from channels_app.rules.encryption import Unreadable
from channels_app.rules.fields import MASK, BadValues, Fault, Field
from channels_app.rules.registered import Registered
from channels_app.rules.tenants import OPERATOR, Tenant

MIN_TIMEOUT_MS = 100
MOST_ATTEMPTS = 100
MOST_IN_FLIGHT = 1000


def _url(value: str) -> str | None:
    if not value:
        return None
    return addresses.check_url(value, allowed=conf().allowed_targets, https_only=conf().https_only)


FIELDS: dict[str, Field] = {
    "description": settings.description,
    "team": Field(
        fields.nullable(fields.slug),
        kept=True,
        help="Who owns it: the key's team unless an operator says otherwise.",
    ),
    "mode": Field(fields.choice("push", "pull"), default="push"),
    "url": Field(
        fields.text(addresses.LONGEST_URL, check=_url),
        default="",
        help="Where deliveries are sent: https or http, public. A pull consumer has none.",
    ),
    "event_types": Field(
        fields.listed(fields.text(200, check=filters.validate_pattern), 200),
        default=[],
        help="Names and patterns like order.*; none at all means everything.",
    ),
    "headers": Field(
        settings.static_headers,
        default={},
        help=f"Sent with every delivery. Stored values are shown as {MASK}, which keeps them.",
    ),
    "signing": Field(
        fields.listed(fields.choice("v1", "v1a"), 2),
        default=["v1"],
        help="Signature schemes: v1 (HMAC-SHA256) always, v1a adds Ed25519.",
    ),
    "timeout_ms": Field(
        fields.nullable(fields.whole(MIN_TIMEOUT_MS, MAX_TIMEOUT_MS)), help="Of one attempt."
    ),
    "max_attempts": Field(
        fields.nullable(fields.whole(1, MOST_ATTEMPTS)), help="Failures until it is dead."
    ),
    "retry": Field(
        fields.nullable(settings.retry_policy),
        help="A preset, a list of delays in seconds, or base, factor and cap.",
    ),
    "rate_limit": Field(settings.rate_limit, help="Requests per second, and how many at once."),
    "max_in_flight": Field(
        fields.nullable(fields.whole(1, MOST_IN_FLIGHT)), help="Requests open at the same time."
    ),
    "ordering": Field(
        fields.boolean,
        default=False,
        help="Deliveries of one ordering key go one after the other, as they were accepted.",
    ),
    "head_of_line": Field(
        fields.choice("skip", "block"), default="skip", help="Behind a dead delivery of a key."
    ),
    "ack": Field(settings.ack, help="How it acknowledges, where its answer alone does not."),
}
"""What may be written; null limits mean the channel's or the installation's."""


@dataclass(frozen=True, slots=True)
class _Order:
    """One registration as it was asked for."""

    channel: str
    client_id: str
    values: dict[str, Any]
    actor: str
    tenant: Tenant
    condition: Condition
    reason: str
    create: bool


def put(
    channel: str,
    client_id: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    tenant: Tenant = OPERATOR,
    condition: Condition = ALWAYS,
    reason: str = "",
) -> Registered[Consumer]:
    """Create or replace the consumer; the same values twice change nothing.

    A retired one comes back as if new, with a new secret and its history. ``secrets`` holds the
    ``whsec_...`` of a created one, which is never shown again. Raises Invalid, NotFound (no such
    channel, or another tenant's consumer) and Stale.
    """
    wanted = _clean(client_id, values, partial=False)
    return _run(_Order(channel, client_id, wanted, actor, tenant, condition, reason, create=True))


def patch(
    channel: str,
    client_id: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    tenant: Tenant = OPERATOR,
    condition: Condition = ALWAYS,
    reason: str = "",
) -> Registered[Consumer]:
    """Change the given settings of an existing consumer. Raises Invalid, NotFound and Stale."""
    wanted = _clean(client_id, values, partial=True)
    return _run(_Order(channel, client_id, wanted, actor, tenant, condition, reason, create=False))


def describe(consumer: Consumer) -> dict[str, Any]:
    """The consumer's settings as they are written; values of its headers are masked.

    ``headers`` is None when the key that sealed them is missing.
    """
    return _settings(consumer) | {"headers": _masked(static_headers(consumer))}


def static_headers(consumer: Consumer) -> dict[str, str] | None:
    """The consumer's own headers in clear; None when the key that sealed them is missing."""
    sealed = bytes(consumer.headers_sealed)
    if not sealed:
        return {}
    try:
        text = sealing.open_for_consumer(consumer.channel_id, consumer.client_id, sealed)
    except Unreadable:
        return None
    return dict(json.loads(text))


def _settings(consumer: Consumer) -> dict[str, Any]:
    limited = consumer.rate_per_second
    rate = {"per_second": limited, "burst": consumer.rate_burst} if limited else None
    plain = ("description", "mode", "url", "event_types", "timeout_ms", "max_attempts")
    return {
        **{name: getattr(consumer, name) for name in plain},
        "team": consumer.team.slug if consumer.team else None,
        "headers": {},
        "signing": ["v1", *consumer.signing],
        "retry": consumer.retry,
        "rate_limit": rate,
        "max_in_flight": consumer.max_in_flight,
        "ordering": consumer.ordering,
        "head_of_line": consumer.head_of_line,
        "ack": consumer.ack,
    }


def _clean(client_id: str, values: Mapping[str, Any], *, partial: bool) -> dict[str, Any]:
    if fault := names.slug(client_id):
        raise Invalid.of(BadValues([Fault("client_id", fault)]))
    try:
        return fields.clean(FIELDS, values, partial=partial)
    except BadValues as bad:
        raise Invalid.of(bad) from None


def _run(order: _Order) -> Registered[Consumer]:
    # A rival that creates the same name first makes our insert collide: then it is a replacement.
    return transactions.run(lambda: _write(order), on_collision=lambda: None)


def _write(order: _Order) -> Registered[Consumer]:
    consumer, live = _find(order)
    before = describe(consumer) if live else None
    former_team_id = consumer.team_id
    stored = given = static_headers(consumer) if live else {}
    address = inbound.opened(consumer) if live else None
    _set(consumer, order)
    moved = "ack" in order.values and inbound.seal(consumer, address)
    if "headers" in order.values:
        given = _unmask(order.values["headers"], stored or {})
    after = _settings(consumer) | {"headers": _masked(given)}
    if before == after and given == stored and not moved:
        return Registered(consumer)
    if given is not None and (given != stored or not live):
        _seal_headers(consumer, given)
    if not live:
        consumer.state, consumer.state_reason = Consumer.State.ACTIVE, ""
        consumer.state_changed_at = clock.now()
    consumer.save()
    secrets = _mint(consumer, renew=not live)
    AuditEntry.record(
        order.actor,
        "consumer.update" if live else "consumer.create",
        f"consumer:{order.channel}/{order.client_id}",
        team_id=consumer.team_id,
        former_team_id=former_team_id,
        reason=order.reason,
        before=before,
        after=after,
    )
    return Registered(consumer, created=not live, changed=True, secrets=secrets)


def _find(order: _Order) -> tuple[Consumer, bool]:
    """The consumer, new if need be, and whether it is registered already."""
    channel = Channel.objects.filter(slug=order.channel).first()
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {order.channel}.")
    mine = Consumer.objects.select_for_update().filter(channel=channel, client_id=order.client_id)
    found = mine.first()
    live = found is not None and found.state != Consumer.State.RETIRED
    if (found and not order.tenant.owns(found.team_id)) or not (live or order.create):
        raise NotFound("unknown_consumer", f"The channel has no consumer {order.client_id}.")
    if not order.condition.holds(found.version if found and live else None):
        raise Stale("stale_version", "The consumer has changed since; read it again.")
    if found is None:
        found = Consumer(channel=channel, client_id=order.client_id)
        found.team_id = order.tenant.team_id
    return found, live


def _set(consumer: Consumer, order: _Order) -> None:
    values = dict(order.values)
    values.pop("headers", None)
    if "team" in values:
        _set_team(consumer, values.pop("team"), order.tenant)
    if "signing" in values:
        consumer.signing = [scheme for scheme in values.pop("signing") if scheme != "v1"]
    if "rate_limit" in values:
        rate = values.pop("rate_limit") or {"per_second": None, "burst": 1}
        consumer.rate_per_second, consumer.rate_burst = rate["per_second"], rate["burst"]
    for name, value in values.items():
        setattr(consumer, name, value)
    _check_url(consumer, order.values)


def _set_team(consumer: Consumer, slug: str | None, tenant: Tenant) -> None:
    team = Team.objects.filter(slug=slug).first() if slug else None
    missing = slug is not None and team is None
    if missing or not tenant.owns(team.id if team else None):
        fault = Fault("team", f"There is no team {slug} that this key may register for.")
        raise Invalid.of(BadValues([fault]))
    consumer.team = team


def _check_url(consumer: Consumer, values: Mapping[str, Any]) -> None:
    if consumer.mode == Consumer.Mode.PULL:
        if values.get("url"):
            raise Invalid.of(BadValues([Fault("url", "A pull consumer has no address.")]))
        consumer.url = ""
    elif not consumer.url:
        raise Invalid.of(BadValues([Fault("url", "A push consumer needs an address.")]))


def _masked(given: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if given is None else dict.fromkeys(given, MASK)


def _unmask(given: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    known = {headers.canonical(name): value for name, value in stored.items()}
    masked = [name for name, value in given.items() if value == MASK]
    if missing := [name for name in masked if headers.canonical(name) not in known]:
        fault = Fault("headers", f"{MASK} keeps a stored value, and {missing[0]} has none.")
        raise Invalid.of(BadValues([fault]))
    return {**given, **{name: known[headers.canonical(name)] for name in masked}}


def _seal_headers(consumer: Consumer, given: Mapping[str, str]) -> None:
    plain = json.dumps(given).encode()
    sealed, _ = sealing.seal_for_consumer(consumer.channel_id, consumer.client_id, plain)
    consumer.headers_sealed = sealed if given else b""


def _mint(consumer: Consumer, *, renew: bool) -> tuple[str, ...]:
    """Make the secrets that are missing; those of a former life sign nothing any more."""
    if renew:
        consumer.secrets.all().delete()
    shown = (sealing.mint_secret(consumer),) if renew else ()
    pairs = consumer.secrets.filter(scheme=ConsumerSecret.Scheme.V1A)
    if "v1a" not in consumer.signing:
        pairs.delete()
    elif not pairs.filter(expires_at=None).exists():
        sealing.mint_key_pair(consumer)
    return shown
