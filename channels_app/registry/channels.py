"""Register a channel: create it, replace its settings or change some of them (S0-10)."""

from collections.abc import Mapping
from typing import Any

from channels_app.conf import conf
from channels_app.core import fields, json_paths, names, ordering_key, settings
from channels_app.core.errors import FieldError, Invalid, NotFound
from channels_app.core.fields import Described, Field
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import clock, transactions
from channels_app.models import Channel, Message
from channels_app.registry.configuration import Resource, WriteResult, assign

MAX_DAYS = 3650
MAX_WINDOW_MS = 5_000
"""A waiting request holds a thread for this long."""
MAX_WINDOW_S = 31 * 86_400
"""Maximum lifetime of idempotency records; each key has one row (S0-70)."""


def _body_bytes(value: object) -> Any:
    return fields.whole(1, conf().max_body_bytes)(value)


def _future_days(value: object) -> Any:
    return fields.whole(1, conf().max_future_days)(value)


def _days(of_what: str) -> Field:
    return Field(fields.nullable(fields.whole(1, MAX_DAYS)), help=f"Days that {of_what} are kept.")


FIELDS: dict[str, Field] = {
    "description": settings.description,
    "exposure": Field(
        fields.choice("internal", "external"),
        default="internal",
        help="Teams see external channels. A team's key uses an internal one only if it names it.",
    ),
    "history": Field(
        fields.choice("granted", "shared"),
        default="granted",
        help="What a team may backfill. granted: since it has access; shared: all stored messages.",
    ),
    "kind": Field(
        fields.choice("topic", "queue"),
        kept=True,
        help="topic: each message goes to every consumer; queue: to one of them. It cannot change "
        "once the channel has messages.",
    ),
    "ordering": Field(
        fields.choice("keyed", "fifo"),
        default="keyed",
        help="For consumers with ordering. keyed: only messages with an ordering key are ordered; "
        "fifo: all are, and those without a key share one.",
    ),
    "ordering_key_path": Field(
        fields.text(json_paths.MAX_LENGTH, check=ordering_key.path_fault),
        default="",
        help="Path of the ordering key in a JSON body, like user.id or items[0].sku, for messages "
        "published without one.",
    ),
    "reorder_window_ms": Field(
        fields.whole(0, MAX_WINDOW_MS),
        default=500,
        help="Maximum time that a message with a Hookstation-Producer-Seq waits for earlier ones.",
    ),
    "paused": Field(
        fields.boolean,
        kept=True,
        help="Accept messages but deliver none. A PUT without it keeps the value.",
    ),
    "sensitive": Field(
        fields.boolean,
        default=False,
        help="Show bodies, headers and responses only with an extra permission, never in lists.",
    ),
    "encrypt_bodies": Field(fields.boolean, default=True, help="Encrypt new bodies at rest."),
    "require_idempotency_key": Field(
        fields.boolean, default=False, help="Refuse messages without an Idempotency-Key."
    ),
    "idempotency_scope": Field(
        fields.choice("producer", "channel"),
        default="producer",
        help="producer: each producer has its own idempotency keys; channel: all share them.",
    ),
    "max_body_bytes": Field(
        fields.nullable(Described(_body_bytes, {"type": "integer", "minimum": 1})),
        help="Maximum bytes of a body, within the installation's limit.",
    ),
    "content_types": Field(
        fields.listed(fields.text(255, check=settings.media_type), 50),
        default=[],
        help="Media types or ranges (text/*) that producers may send. An empty list allows all.",
    ),
    "idempotency_window_s": Field(
        fields.nullable(fields.whole(1, MAX_WINDOW_S)),
        help="Seconds for which an Idempotency-Key is remembered.",
    ),
    "max_future_days": Field(
        fields.nullable(Described(_future_days, {"type": "integer", "minimum": 1})),
        help="Days ahead that messages may be scheduled, within the installation's limit.",
    ),
    "max_waiting_messages": settings.max_waiting_messages,
    "max_waiting_bytes": settings.max_waiting_bytes,
    "retention_days": _days("finished messages"),
    "dead_retention_days": _days("dead letters"),
    "default_retry": Field(
        fields.nullable(settings.retry_policy), help="Retry policy of consumers without their own."
    ),
}
"""Fields that can be written; null limits mean the installation's."""


def put(
    slug: str,
    values: Mapping[str, Any],
    *,
    actor: str,
    condition: Precondition = ALWAYS,
    reason: str = "",
) -> WriteResult[Channel]:
    """Create the channel or replace its settings; writing the same values again changes nothing.

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
) -> WriteResult[Channel]:
    """Change the given settings of an existing channel.

    Raises Invalid, NotFound and PreconditionFailed.
    """
    return _register(slug, values, actor, condition, reason, partial=True)


def describe(channel: Channel) -> dict[str, Any]:
    """The channel's settings in the form in which they are written."""
    return {name: getattr(channel, name) for name in FIELDS}


def _register(
    slug: str,
    values: Mapping[str, Any],
    actor: str,
    condition: Precondition,
    reason: str,
    *,
    partial: bool,
) -> WriteResult[Channel]:
    if fault := names.slug(slug):
        raise Invalid.of([FieldError("channel", fault)])
    wanted = fields.clean(FIELDS, values, partial=partial)
    # A concurrent insert of the same name makes ours collide; the retry then replaces that channel.
    return transactions.run(
        lambda: _write(slug, wanted, actor, condition, reason, create=not partial),
        on_collision=lambda: None,
    )


def _write(
    slug: str,
    wanted: dict[str, Any],
    actor: str,
    condition: Precondition,
    reason: str,
    *,
    create: bool,
) -> WriteResult[Channel]:
    found = Channel.objects.select_for_update().filter(slug=slug).first()
    if found is None and not create:
        raise NotFound("unknown_channel", f"There is no channel {slug}.")
    channel = found or Channel(slug=slug)
    return _RESOURCE.save(
        channel, wanted, f"channel:{slug}", actor=actor, condition=condition, reason=reason
    )


def _assign(channel: Channel, values: Mapping[str, Any]) -> None:
    _check_kind(channel, values)
    was_internal = bool(channel.pk) and channel.exposure == "internal"
    assign(channel, values)
    if was_internal and channel.exposure == "external":
        channel.exposed_at = clock.now()


_RESOURCE = Resource("channel", "channel", describe, _assign)


def _check_kind(channel: Channel, wanted: Mapping[str, Any]) -> None:
    """Reject another kind once there are messages: reconciliation and backfills depend on it."""
    is_other = wanted.get("kind", channel.kind) != channel.kind
    if is_other and channel.pk and Message.objects.filter(channel_id=channel.pk).exists():
        fault = FieldError("kind", f"The channel has messages, so it must stay a {channel.kind}.")
        raise Invalid.of([fault])
