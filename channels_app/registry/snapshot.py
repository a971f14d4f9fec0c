"""Load channels, consumers and keys as the tables have them at one instant."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, NamedTuple, Self

from django.db.models import QuerySet

from channels_app.access.principal import Principal
from channels_app.conf import Conf, conf
from channels_app.core import backoff, consumer_config, ordering_key
from channels_app.core.consumer_config import ConsumerConfig, Signer
from channels_app.core.encryption import Unreadable
from channels_app.core.ordering_key import Keying
from channels_app.core.rate_limits import Limit, Rate, within
from channels_app.core.subscriptions import Subscriptions
from channels_app.database import raw
from channels_app.models import (
    ApiKey,
    Channel,
    Consumer,
    ConsumerSecret,
    EventType,
    IdempotencyRecord,
    Producer,
)
from channels_app.registry import data_encryption

MAX_STALE = 500
"""Channels that are read by their ids after a change; if more have changed, all are read. Also the
consumers in one query."""
_COPIED = {field.name for field in fields(ConsumerConfig)}.intersection(
    field.attname for field in Consumer._meta.concrete_fields
)
"""What delivery reads of a consumer as it is stored, unless `_consumer_config` computes it."""
_Version = tuple[int, Any]
"""Number and time of a row's last save. A number alone could return after a rollback."""
_SEALED = ("channel_id", "client_id", "headers_sealed")


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """One channel with all settings that accepting a message needs."""

    id: int
    slug: str
    exposure: str
    kind: str
    keying: Keying | None
    """How the channel derives ordering keys for messages without one; None if it does not."""
    reorder_window_ms: int
    paused: bool
    encrypt_bodies: bool
    require_idempotency_key: bool
    idempotency_scope: str
    max_body_bytes: int
    content_types: tuple[str, ...]
    idempotency_window_s: int
    max_future_days: int
    """How many days ahead its messages may be scheduled."""
    retention_days: int
    dead_retention_days: int
    limit: Limit | None
    """How much may wait in the channel; None for no limit."""
    schemas: dict[str, Any]
    """JSON Schema by event type name, for the event types that have one."""
    subscriptions: Subscriptions[ConsumerConfig] = field(repr=False)
    """Consumers that are not retired, by what they subscribe to."""

    @property
    def consumers(self) -> Sequence[ConsumerConfig]:
        """Consumers that are not retired."""
        return self.subscriptions.consumers

    def wanting(self, event_type: str) -> Sequence[ConsumerConfig]:
        """The consumers that get a topic's message of this event type ('' for none)."""
        return self.subscriptions.matching(event_type)

    def key_digest(self, producer_id: int | None, key: str) -> str:
        """The digest under which a producer's idempotency key is stored."""
        is_shared = self.idempotency_scope == Channel.IdempotencyScope.CHANNEL
        owner = IdempotencyRecord.SHARED if is_shared else producer_id
        return IdempotencyRecord.digest_of(self.id, owner, key)


@dataclass(frozen=True, slots=True)
class KeyConfig:
    """One API key with its owner."""

    digest: str
    has_sigv4: bool
    """Whether the key has a secret for AWS Signature Version 4, read by
    ``ConfigCache.sigv4_secret``."""
    expires_at: datetime | None
    revoked_at: datetime | None
    principal: Principal


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All channels, and their consumers by several keys; never changed after it is built."""

    channels: Mapping[str, ChannelConfig]
    """By name."""
    channels_by_id: Mapping[int, ChannelConfig]
    consumers: Mapping[int, ConsumerConfig]
    """Consumers that are not retired, by id."""
    named: Mapping[tuple[str, str], ConsumerConfig]
    """The same consumers, by channel name and client id."""
    ordered: Mapping[int, ConsumerConfig]
    """Consumers that keep the order of keys, by id."""
    awaiting: frozenset[int]
    """Ids of the consumers that acknowledge later."""
    dead_lettered: frozenset[int]
    """Ids of the consumers with a dead-letter channel."""
    team_limits: Mapping[int, Limit | None]
    """How much may wait of the team of each producer that has one, by the producer's id."""

    versions: "_Versions"
    defaults: Conf
    """The installation's settings, which apply where a row has none of its own."""

    @classmethod
    def take(cls, former: Self | None = None) -> Self:
        """Read the tables in the current transaction, or only what changed since ``former``.

        One change of many thousand channels and consumers costs little more than their versions.
        """
        versions = _Versions.read()
        channels = None
        if former and former.defaults is conf():
            stale = versions.changed_since(former.versions)
            stale |= versions.channels.keys() - former.channels_by_id.keys()
            if len(stale) <= MAX_STALE:
                channels = _reload(stale, versions, former)
        if channels is None:
            channels = load_channels()
        consumers = [consumer for channel in channels.values() for consumer in channel.consumers]
        return cls(
            channels=channels,
            channels_by_id={channel.id: channel for channel in channels.values()},
            consumers={consumer.id: consumer for consumer in consumers},
            named={(consumer.channel_slug, consumer.client_id): consumer for consumer in consumers},
            ordered={consumer.id: consumer for consumer in consumers if consumer.ordering},
            awaiting=frozenset(consumer.id for consumer in consumers if consumer.ack),
            dead_lettered=frozenset(
                consumer.id for consumer in consumers if consumer.dead_letter_channel_id
            ),
            team_limits=load_team_limits(),
            versions=versions,
            defaults=conf(),
        )


class _Versions(NamedTuple):
    """The rows that a snapshot is made of, by id, with their versions."""

    channels: Mapping[int, _Version]
    consumers: Mapping[int, Mapping[int, _Version]]
    """By channel: those that are not retired, in the order of their ids."""
    schemas: Mapping[int, Mapping[int, _Version]]
    """By channel: event types with a JSON Schema."""

    @classmethod
    def read(cls) -> Self:
        """Read them before the rows: what changes in between is read again the next time."""
        channels, consumers = raw.read_all(
            [
                ("SELECT id, version, updated_at FROM channels_app_channel ORDER BY id", []),
                (
                    "SELECT channel_id, id, version, updated_at FROM channels_app_consumer "
                    "WHERE state <> 'retired' ORDER BY id",
                    [],
                ),
            ]
        )
        schemas = EventType.objects.filter(schema__isnull=False)
        return cls(
            {channel_id: (number, saved_at) for channel_id, number, saved_at in channels},
            _by_channel(consumers),
            _by_channel(schemas.values_list("channel_id", "id", "version", "updated_at")),
        )

    def changed_since(self, former: "_Versions") -> set[int]:
        """The ids of channels that are new or changed, or whose consumers or schemas are."""
        return {
            channel_id
            for channel_id, version in self.channels.items()
            if version != former.channels.get(channel_id)
            or self.consumers.get(channel_id) != former.consumers.get(channel_id)
            or self.schemas.get(channel_id) != former.schemas.get(channel_id)
        }


def load_channels(slugs: Collection[str] | None = None) -> dict[str, ChannelConfig]:
    """The channels with these names, or all, by name, as the current transaction sees them."""
    channels = Channel.objects.all()
    rows = Consumer.objects.exclude(state=Consumer.State.RETIRED).order_by("id")
    event_types = EventType.objects.all()
    if slugs is not None:
        channels = channels.filter(slug__in=slugs)
        rows = rows.filter(channel__in=channels)
        event_types = event_types.filter(channel__in=channels)
    consumers: dict[int, list[Consumer]] = {}
    for consumer in rows:
        consumers.setdefault(consumer.channel_id, []).append(consumer)
    schemas = _schemas_of(event_types)
    return {
        channel.slug: _channel_config(
            channel,
            [_consumer_config(row, channel) for row in consumers.get(channel.id, ())],
            schemas.get(channel.id, {}),
        )
        for channel in channels
    }


def load_team_limits() -> dict[int, Limit | None]:
    """How much may wait of the teams' producers, by the producer's id."""
    default = conf().team_quota
    limits = {}
    for producer in Producer.objects.exclude(team=None).select_related("team"):
        team = producer.team
        assert team is not None
        limits[producer.pk] = Limit.of("team", team.pk, team.slug, team.quota(default))
    return limits


def load_key(key_id: str) -> KeyConfig | None:
    """The key with that id, with its owner; None if there is none."""
    key = ApiKey.objects.select_related("producer").filter(key_id=key_id).first()
    if key is None:
        return None
    principal = Principal(
        actor=f"key:{key_id}",
        is_operator="admin" in key.scopes,
        team_id=key.team_id or (key.producer.team_id if key.producer else None),
        producer=key.producer,
        scopes=tuple(key.scopes),
        channels=tuple(key.channels),
        key_id=key_id,
    )
    return KeyConfig(key.digest, key.has_sigv4, key.expires_at, key.revoked_at, principal)


def load_sigv4_secret(key_id: str) -> str:
    """The secret access key of an API key. Raises ApiKey.DoesNotExist and Unreadable."""
    key = ApiKey.objects.only("sigv4_sealed").get(key_id=key_id)
    return data_encryption.decrypt_sigv4(key_id, bytes(key.sigv4_sealed))


def load_signer(consumer_id: int) -> Signer:
    """Decrypted secrets and headers of one consumer.

    Raises Consumer.DoesNotExist and Unreadable.
    """
    consumer = Consumer.objects.only(*_SEALED).get(id=consumer_id)
    return _decrypt(consumer, consumer.secrets.order_by("-id"))


def load_signers(consumer_ids: Collection[int]) -> dict[int, Signer]:
    """The same for many consumers, in two queries; without those that cannot be decrypted."""
    secrets: dict[int, list[ConsumerSecret]] = {}
    for secret in ConsumerSecret.objects.filter(consumer_id__in=consumer_ids).order_by("-id"):
        secrets.setdefault(secret.consumer_id, []).append(secret)
    signers = {}
    for consumer in Consumer.objects.only(*_SEALED).filter(id__in=consumer_ids):
        with suppress(Unreadable):
            signers[consumer.id] = _decrypt(consumer, secrets.get(consumer.id, ()))
    return signers


def _reload(stale: set[int], versions: _Versions, former: Snapshot) -> dict[str, ChannelConfig]:
    """The channels by name; those that are not ``stale`` are the former ones."""
    rows = {row.id: row for row in Channel.objects.filter(id__in=stale)}
    consumers = _reload_consumers(rows, versions, former)
    same_schemas = {
        key
        for key in rows.keys() & former.channels_by_id.keys()
        if versions.schemas.get(key) == former.versions.schemas.get(key)
    }
    schemas = _schemas_of(EventType.objects.filter(channel_id__in=rows.keys() - same_schemas))
    # The same objects, for which compiled schemas are kept.
    schemas |= {key: former.channels_by_id[key].schemas for key in same_schemas}
    channels = {}
    for key in versions.channels:
        if key not in stale:
            channel = former.channels_by_id[key]
        elif row := rows.get(key):  # else it was deleted meanwhile
            channel = _channel_config(row, consumers[key], schemas.get(key, {}))
        else:
            continue
        channels[channel.slug] = channel
    return channels


def _reload_consumers(
    channels: Mapping[int, Channel], versions: _Versions, former: Snapshot
) -> dict[int, list[ConsumerConfig]]:
    """The consumers of these channels; the former ones as far as neither they nor it changed."""
    configs: dict[int, ConsumerConfig] = {}
    for key in channels.keys() & former.channels_by_id.keys():
        if versions.channels[key] == former.versions.channels.get(key):
            before, now = former.versions.consumers.get(key, {}), versions.consumers.get(key, {})
            configs |= {
                config.id: config
                for config in former.channels_by_id[key].consumers
                if before.get(config.id) == now.get(config.id)
            }
    wanted = {key: [*versions.consumers.get(key, ())] for key in channels}
    missing = [key for keys in wanted.values() for key in keys if key not in configs]
    for start in range(0, len(missing), MAX_STALE):
        rows = Consumer.objects.filter(id__in=missing[start : start + MAX_STALE])
        for row in rows.exclude(state=Consumer.State.RETIRED):
            configs[row.id] = _consumer_config(row, channels[row.channel_id])
    return {
        key: [configs[consumer_id] for consumer_id in keys if consumer_id in configs]
        for key, keys in wanted.items()
    }


def _consumer_config(consumer: Consumer, channel: Channel) -> ConsumerConfig:
    defaults = conf()
    retry = consumer.retry if consumer.retry is not None else channel.default_retry
    max_attempts = consumer.max_attempts or defaults.max_attempts
    per_second, burst = consumer.rate_per_second, consumer.rate_burst
    values = {name: getattr(consumer, name) for name in _COPIED}
    values |= {
        "channel_slug": channel.slug,
        "halted": channel.paused or consumer.state != Consumer.State.ACTIVE,
        "event_types": tuple(consumer.event_types),
        "timeout_ms": consumer.timeout_ms or defaults.timeout_ms,
        "retry": backoff.resolve_rule(retry, max_attempts),
        "rate": Rate(per_second=per_second, burst=burst) if per_second else None,
        "max_in_flight": consumer.max_in_flight or defaults.max_in_flight,
        "encrypt_bodies": channel.encrypt_bodies,
        "retry_overrides": consumer_config.resolve_overrides(
            consumer.retry_overrides, retry, max_attempts
        ),
    }
    return ConsumerConfig(**values)


def _schemas_of(event_types: QuerySet[EventType]) -> dict[int, dict[str, Any]]:
    """JSON Schemas by name, by the ids of their channels."""
    schemas: dict[int, dict[str, Any]] = {}
    for event_type in event_types.filter(schema__isnull=False):
        if event_type.schema is not None:  # the filter lets JSON's null pass
            schemas.setdefault(event_type.channel_id, {})[event_type.name] = event_type.schema
    return schemas


def _channel_config(
    channel: Channel, consumers: Sequence[ConsumerConfig], schemas: dict[str, Any]
) -> ChannelConfig:
    defaults = conf()
    return ChannelConfig(
        id=channel.id,
        slug=channel.slug,
        exposure=channel.exposure,
        kind=channel.kind,
        keying=ordering_key.of(channel.ordering, channel.ordering_key_path),
        reorder_window_ms=channel.reorder_window_ms,
        paused=channel.paused,
        encrypt_bodies=channel.encrypt_bodies,
        require_idempotency_key=channel.require_idempotency_key,
        idempotency_scope=channel.idempotency_scope,
        max_body_bytes=within(channel.max_body_bytes, defaults.max_body_bytes),
        content_types=tuple(channel.content_types),
        idempotency_window_s=channel.idempotency_window_s or defaults.idempotency_window_s,
        max_future_days=within(channel.max_future_days, defaults.max_future_days),
        retention_days=channel.retention_days or defaults.retention_days,
        dead_retention_days=channel.dead_retention_days or defaults.dead_retention_days,
        limit=Limit.of("channel", channel.id, channel.slug, channel.quota(defaults.channel_quota)),
        schemas=schemas,
        subscriptions=Subscriptions(consumers),
    )


def _by_channel(rows: Iterable[tuple[int, int, int, Any]]) -> dict[int, dict[int, _Version]]:
    versions: dict[int, dict[int, _Version]] = {}
    for channel_id, key, number, saved_at in rows:
        versions.setdefault(channel_id, {})[key] = number, saved_at
    return versions


def _decrypt(consumer: Consumer, secrets: Iterable[ConsumerSecret]) -> Signer:
    """Decrypt the secrets, newest first, for consumers that check only the first signature."""
    channel_id, client_id = consumer.channel_id, consumer.client_id
    keys: dict[str, list[tuple[bytes, datetime | None]]] = {"v1": [], "v1a": []}
    for secret in secrets:
        opened = data_encryption.decrypt_for_consumer(channel_id, client_id, bytes(secret.sealed))
        keys[secret.scheme].append((opened, secret.expires_at))
    sealed = bytes(consumer.headers_sealed)
    headers = (
        json.loads(data_encryption.decrypt_for_consumer(channel_id, client_id, sealed))
        if sealed
        else {}
    )
    return Signer(v1=tuple(keys["v1"]), v1a=tuple(keys["v1a"]), headers=tuple(headers.items()))
