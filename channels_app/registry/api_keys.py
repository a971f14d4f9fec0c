"""Create, rotate and revoke API keys. A key's text is shown once and never stored (S0-11).

A key created with ``sigv4`` has a second secret, for clients that sign their requests with AWS
Signature Version 4 (S0-49). Verification needs that secret itself, so it is stored encrypted, not
as a digest.
"""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet

from channels_app.access.principal import Principal
from channels_app.core import access, keys, times
from channels_app.core.access import KeyRights
from channels_app.core.errors import Conflict, FieldError, Invalid, NotFound, Refused
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import clock, transactions
from channels_app.models import ApiKey, AuditEntry, Channel, Producer, Team
from channels_app.registry import data_encryption
from channels_app.registry.resource import WriteResult
from channels_app.serializers.api_keys import KeySerializer, OverlapSerializer


def create(
    values: Mapping[str, Any],
    *,
    principal: Principal,
    producer: str | None = None,
    team: str | None = None,
) -> WriteResult[ApiKey]:
    """Create a key for a producer, for a team, or (without either) for the installation.

    ``secrets`` holds its text, once, and with ``sigv4`` the access key id and the secret access key
    as well (see `Shown`). Raises Invalid, NotFound for an unknown owner, and with ``sigv4``
    KeyUnavailable in a process without the encryption key.
    """
    wanted = KeySerializer().read(values)
    _check(wanted, of_team=team is not None)
    return transactions.run(lambda: _create(wanted, principal, producer, team))


def create_within(
    team: str, values: Mapping[str, Any], *, principal: Principal, producer: str | None = None
) -> WriteResult[ApiKey]:
    """As ``create``, for a team that grants its own rights to itself or to one of its producers.

    The key expires when those rights do, even if a later time was requested. Raises Invalid, also
    for rights that the team cannot grant, and NotFound.
    """
    wanted = KeySerializer().read(values)
    if producer is not None and not _producers(team).filter(slug=producer).exists():
        raise NotFound("unknown_producer", f"There is no producer {producer}.")
    held, of_producer = _held(team, producer), producer is not None
    given = (wanted["scopes"], wanted["channels"])
    if fault := access.excess(*given, of_producer=of_producer, held=held):
        raise Invalid.of([fault])
    _check(wanted, of_team=not of_producer)
    ends = (wanted["expires_at"], access.end(*given, of_producer=of_producer, held=held))
    wanted["expires_at"] = min((end for end in ends if end), default=None)
    owner = None if of_producer else team
    return transactions.run(lambda: _create(wanted, principal, producer, owner))


def every_channel(team: str, producer: str | None, scopes: Collection[str]) -> list[str]:
    """Channels to list in a key for all that its owner may use (see ``create_within``)."""
    held = _held(team, producer)
    return access.every(scopes, of_producer=producer is not None, held=held)


def rotate(
    key_id: str,
    values: Mapping[str, Any],
    *,
    principal: Principal,
    producer: str | None = None,
    team: str | None = None,
    condition: Precondition = ALWAYS,
) -> WriteResult[ApiKey]:
    """Create a successor of a key; the old key expires after ``overlap_s`` seconds (0: at once).

    ``producer`` restricts the search to that producer's keys, ``team`` to those of the team and
    its producers. Raises Invalid, NotFound, PreconditionFailed, Refused for a key whose rights a
    team cannot grant, and Conflict for a key that is revoked or has expired.
    """
    overlap_s = OverlapSerializer().read(values)["overlap_s"]
    candidates = _keys(producer, team)

    def work() -> WriteResult[ApiKey]:
        old = _find(candidates, key_id, condition)
        if team is not None and not access.OPERATORS.isdisjoint(old.scopes):
            raise Refused("The key can do more than a team may give. Ask an operator to rotate it.")
        return _rotate(old, overlap_s, principal)

    return transactions.run(work)


def revoke(
    key_id: str,
    *,
    principal: Principal,
    producer: str | None = None,
    team: str | None = None,
    condition: Precondition = ALWAYS,
) -> WriteResult[ApiKey]:
    """Revoke a key, in every process within a second. Raises NotFound and PreconditionFailed."""
    candidates = _keys(producer, team)
    return transactions.run(lambda: _revoke(_find(candidates, key_id, condition), principal))


class Shown(NamedTuple):
    """The ``secrets`` of ``create`` and ``rotate``, which are shown once."""

    key: str
    """``hsk_...``"""
    access_key_id: str | None = None
    """``AWS_ACCESS_KEY_ID`` of clients. None for a key without ``sigv4``."""
    secret_access_key: str | None = None
    """``AWS_SECRET_ACCESS_KEY`` of clients."""

    @property
    def environment(self) -> list[str]:
        """Lines ``NAME=value`` for a shell; empty for a key without ``sigv4``."""
        if self.access_key_id is None:
            return []
        return [
            f"AWS_ACCESS_KEY_ID={self.access_key_id}",
            f"AWS_SECRET_ACCESS_KEY={self.secret_access_key}",
        ]

    @property
    def lines(self) -> tuple[str, ...]:
        """All secrets for display: the key, then the environment."""
        return (self.key, *self.environment)


def keys_of(team: str) -> QuerySet[ApiKey]:
    """The keys of a team and of its producers."""
    return ApiKey.objects.filter(Q(team__slug=team) | Q(producer__in=_producers(team)))


def published_on(team: str) -> list[str]:
    """Names of the channels on which a valid key of the team's producers may publish.

    A key for all channels counts for the external ones only: teams do not see the others.
    """
    slugs: set[str] = set()
    producers = _producers(team).filter(disabled=False)
    for key in working(ApiKey.objects.filter(producer__in=producers)):
        if "publish" in key.scopes:
            slugs.update(key.channels or _external())
    channels = Channel.objects.filter(slug__in=slugs)
    return list(channels.order_by("slug").values_list("slug", flat=True))


def working(rows: QuerySet[ApiKey]) -> QuerySet[ApiKey]:
    """Keys that are valid now."""
    lasting = Q(expires_at=None) | Q(expires_at__gt=clock.now())
    return rows.filter(lasting, revoked_at=None)


def over(rows: QuerySet[ApiKey]) -> QuerySet[ApiKey]:
    """Keys that are revoked or have expired."""
    return rows.filter(Q(revoked_at__isnull=False) | Q(expires_at__lte=clock.now()))


def _check(wanted: dict[str, Any], *, of_team: bool) -> None:
    """Check the request, and drop ``all_channels``: a key without channels means the same."""
    if not wanted["scopes"]:
        raise Invalid.of([FieldError("scopes", "A key needs at least one scope.")])
    granted, all_channels = wanted["channels"], wanted.pop("reaches_all")
    admin = "admin" in wanted["scopes"]
    if fault := _reach(granted, all_channels=all_channels, admin=admin, of_team=of_team):
        raise Invalid.of([fault])
    existing = set(Channel.objects.filter(slug__in=granted).values_list("slug", flat=True))
    if lost := [slug for slug in granted if slug not in existing]:
        raise Invalid.of([FieldError("channels", f"There is no channel {lost[0]}.")])


def _reach(
    granted: list[str], *, all_channels: bool, admin: bool, of_team: bool
) -> FieldError | None:
    """Why the channels are invalid: all of them have to be requested explicitly."""
    if all_channels and granted:
        return FieldError("all_channels", "Give either channels or all_channels, not both.")
    if all_channels and of_team and not admin:
        return FieldError(
            "all_channels", "A team's key may use external channels and the ones it names, not all."
        )
    if admin and not all_channels:
        detail = "An admin key may use every channel: leave out channels and set all_channels."
        return FieldError("all_channels", detail)
    if not (granted or all_channels or of_team):
        detail = "Name the channels, or set all_channels for all of them, including future ones."
        return FieldError("all_channels", detail)
    return None


def _create(
    wanted: Mapping[str, Any], principal: Principal, producer: str | None, team: str | None
) -> WriteResult[ApiKey]:
    owner = Producer.objects.filter(slug=producer).first() if producer is not None else None
    tenant = Team.objects.filter(slug=team).first() if team is not None else None
    if producer is not None and owner is None:
        raise NotFound("unknown_producer", f"There is no producer {producer}.")
    if team is not None and tenant is None:
        raise NotFound("unknown_team", f"There is no team {team}.")
    given = {name: value for name, value in wanted.items() if name != "has_sigv4"}
    key = ApiKey(producer=owner, team=tenant, **given)
    return _make(key, principal, "key.create", sigv4=wanted["has_sigv4"])


def _make(key: ApiKey, principal: Principal, action: str, *, sigv4: bool) -> WriteResult[ApiKey]:
    generated = keys.generate()
    key.key_id, key.digest = generated.key_id, generated.digest
    secrets: tuple[str, ...] = (generated.text,)
    if sigv4:
        secret = keys.generate_sigv4_secret()
        key.sigv4_sealed = data_encryption.encrypt_sigv4(key.key_id, secret)
        secrets += (keys.access_key_id(key.key_id), secret)
    key.save()
    owner = {
        "producer": key.producer.slug if key.producer else None,
        "team": key.team.slug if key.team else None,
    }
    AuditEntry.record(
        principal.actor,
        action,
        f"key:{key.key_id}",
        team_id=_team_id(key),
        reason=principal.reason,
        after=KeySerializer.describe(key) | owner,
    )
    return WriteResult(key, created=True, changed=True, secrets=secrets)


def _team_id(key: ApiKey) -> int | None:
    return key.producer.team_id if key.producer else key.team_id


def _producers(team: str) -> QuerySet[Producer]:
    return Producer.objects.filter(team__slug=team)


def _held(team: str, producer: str | None) -> list[KeyRights]:
    owned = Q(team__slug=team) if producer is None else Q(producer__slug=producer)
    keys_ = working(ApiKey.objects.filter(owned))
    return [KeyRights(key.scopes, key.channels, key.expires_at) for key in keys_]


def _keys(producer: str | None, team: str | None) -> QuerySet[ApiKey]:
    rows = ApiKey.objects.all() if team is None else keys_of(team)
    return rows if producer is None else rows.filter(producer__slug=producer)


def _find(candidates: QuerySet[ApiKey], key_id: str, condition: Precondition) -> ApiKey:
    key = candidates.select_for_update().filter(key_id=key_id).first()
    if key is None:
        raise NotFound("unknown_key", f"There is no key {key_id}.")
    condition.require(key.version, "key")
    return key


def _rotate(old: ApiKey, overlap_s: int, principal: Principal) -> WriteResult[ApiKey]:
    now = clock.now()
    if old.revoked_at or (old.expires_at and old.expires_at <= now):
        raise Conflict("key_of_no_use", "The key is revoked or has expired; create a new one.")
    successor = _make(
        ApiKey(
            label=old.label,
            producer=old.producer,
            team=old.team,
            scopes=old.scopes,
            channels=old.channels,
            expires_at=old.expires_at,
            created_at=now,  # no gap after the old key's end, which would count as a loss of access
        ),
        principal,
        "key.rotate",
        sigv4=old.has_sigv4,
    )
    before = KeySerializer.describe(old)
    until = now + timedelta(seconds=overlap_s)
    old.expires_at = min(old.expires_at or until, until)
    old.save()
    AuditEntry.record(
        principal.actor,
        "key.expire",
        f"key:{old.key_id}",
        team_id=_team_id(old),
        reason=principal.reason,
        before=before,
        after=KeySerializer.describe(old),
    )
    return successor


def _revoke(key: ApiKey, principal: Principal) -> WriteResult[ApiKey]:
    if key.revoked_at:
        return WriteResult(key)
    key.revoked_at = clock.now()
    key.save()
    AuditEntry.record(
        principal.actor,
        "key.revoke",
        f"key:{key.key_id}",
        team_id=_team_id(key),
        reason=principal.reason,
        before={"revoked_at": None},
        after={"revoked_at": times.text(key.revoked_at)},
    )
    return WriteResult(key, changed=True)


def _external() -> QuerySet[Channel, str]:
    external = Channel.objects.filter(exposure=Channel.Exposure.EXTERNAL)
    return external.values_list("slug", flat=True)
