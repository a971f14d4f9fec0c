"""Describe a consumer: where and how it gets its messages."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.serializers import ValidationError

from channels_app.conf import MAX_TIMEOUT_MS, conf
from channels_app.core import backoff, consumer_config, http, networks
from channels_app.core.values import MASK
from channels_app.models import Consumer, ConsumerSecret
from channels_app.serializers.acks import Ack
from channels_app.serializers.base import ResourceSerializer, StrictSerializer
from channels_app.serializers.fields import (
    KEPT,
    OPTIONAL,
    Description,
    EventPattern,
    Flag,
    Instant,
    Listed,
    Number,
    OneOf,
    Slug,
    Strict,
    Text,
    Whole,
)
from channels_app.serializers.settings import MAX_ATTEMPTS, RateLimitSerializer, RetryPolicy

MIN_TIMEOUT_MS = 100
MAX_IN_FLIGHT = 1000
MAX_PUMPS = 16


class SlugOf(Slug):
    """The slug of a related row, which the service finds."""

    def to_representation(self, value: Any) -> str:
        """The row's slug."""
        return str(value.slug)


class MaskedHeaders(Strict, serializers.DictField):
    """A consumer's static headers, which may contain credentials: shown as masks.

    They are stored encrypted. The context's ``headers`` decrypts them; without it they are left
    out.
    """

    default_error_messages = {"invalid": "An object of header names and text values is needed."}
    value_schema = {
        "type": "object",
        "maxProperties": http.MAX_HEADERS,
        "additionalProperties": {"type": "string", "maxLength": http.MAX_VALUE_LENGTH},
    }

    def to_internal_value(self, data: Any) -> dict[str, str]:
        """The headers as sent, possibly with masks."""
        if not isinstance(data, Mapping) or not all(isinstance(v, str) for v in data.values()):
            self.fail("invalid")
        given = dict(data)
        if fault := http.check_static(given):
            raise ValidationError(fault)
        if len({http.canonical(name) for name in given}) < len(given):
            raise ValidationError("A header occurs twice.")
        return given

    def to_representation(self, value: Mapping[str, str]) -> dict[str, str]:
        """A mask for each value."""
        return dict.fromkeys(value, MASK)


class Signing(Listed):
    """Signature schemes; the row has those besides v1, which every consumer gets."""

    def to_internal_value(self, data: Any) -> list[str]:
        """The others."""
        return [scheme for scheme in super().to_internal_value(data) if scheme != "v1"]

    def to_representation(self, value: list[str]) -> list[str]:
        """All."""
        return ["v1", *value]


class RetryOverrideSerializer(StrictSerializer):
    """Retry settings for some event types."""

    event_types = Listed(
        EventPattern(),
        consumer_config.MAX_PATTERNS,
        least=1,
        help_text="Names and patterns like order.*, as in the consumer's event_types.",
        error_messages={"empty": "At least one name or pattern is needed; * is for all."},
    )
    retry = RetryPolicy(help_text="A retry policy; null: the consumer's.", **OPTIONAL)
    max_attempts = Whole(
        1,
        MAX_ATTEMPTS,
        help_text="Failures until a delivery is dead; null: the consumer's.",
        **OPTIONAL,
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """It overrides something."""
        if attrs["retry"] is None and attrs["max_attempts"] is None:
            fault = "Give retry, max_attempts or both; without them it overrides nothing."
            raise ValidationError(fault)
        return attrs


class RetryOverrides(Listed):
    """An ordered list; the first entry that matches a message's event type applies.

    A list with an entry that can never apply is rejected.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(RetryOverrideSerializer(), consumer_config.MAX_OVERRIDES, **options)

    def to_internal_value(self, data: Any) -> list[Any]:
        """The entries."""
        entries = super().to_internal_value(data)
        self.checked(consumer_config.check_overrides, entries)
        return entries


class SigningKeySerializer(StrictSerializer):
    """A key that signs, without its secret."""

    scheme = OneOf(ConsumerSecret.Scheme.values)
    public_key = Text(help_text="whpk_... for v1a; empty for v1.")
    created_at = Instant()
    expires_at = Instant(allow_null=True)


class EffectiveOverrideSerializer(StrictSerializer):
    """An override with the consumer's settings filled in."""

    title = ""
    event_types = Listed(Text())
    retry = RetryPolicy()
    max_attempts = Whole()
    gives_up_after_s = Number()


class EffectiveSettingsSerializer(StrictSerializer):
    """What applies, with the defaults of channel and installation filled in."""

    timeout_ms = Whole()
    max_attempts = Whole()
    max_in_flight = Whole()
    retry = RetryPolicy()
    gives_up_after_s = Number()
    retry_overrides = Listed(
        EffectiveOverrideSerializer(),
        help_text="Settings for these event types; the first matching entry applies.",
    )

    def to_representation(self, instance: Consumer) -> dict[str, Any]:
        """Derived from the row, its channel and the installation."""
        defaults = conf()
        retry = instance.retry if instance.retry is not None else instance.channel.default_retry
        attempts = instance.max_attempts or defaults.max_attempts
        policy = backoff.parse_policy(retry)
        return {
            "timeout_ms": instance.timeout_ms or defaults.timeout_ms,
            "max_attempts": backoff.allowed_attempts(policy, attempts),
            "max_in_flight": instance.max_in_flight or defaults.max_in_flight,
            "retry": retry if retry is not None else backoff.DEFAULT,
            "gives_up_after_s": backoff.total(policy, attempts),
            "retry_overrides": consumer_config.effective_overrides(
                instance.retry_overrides, retry, attempts
            ),
        }


def _url_fault(value: str) -> str | None:
    if not value:
        return None
    return networks.check_url(value, allowed=conf().allowed_networks, https_only=conf().https_only)


class ConsumerSerializer(ResourceSerializer):
    """A consumer; null limits mean the channel's or the installation's."""

    channel = Slug(read_only=True, source="channel.slug")
    client_id = Slug(read_only=True)
    state = OneOf(Consumer.State.values, read_only=True)
    health = OneOf(
        consumer_config.CODES,
        read_only=True,
        source="condition.code",
        help_text="Health of the consumer. A change of health does not change `version`.",
    )
    state_reason = Text(read_only=True)
    state_changed_at = Instant(read_only=True, allow_null=True)
    description = Description()
    team = SlugOf(
        allow_null=True,
        help_text="Team that owns it: the key's team, unless an operator names another.",
        **KEPT,
    )
    mode = OneOf(["push", "pull"], default="push")
    url = Text(
        networks.MAX_URL_LENGTH,
        check=_url_fault,
        default="",
        help_text="Public https or http URL that deliveries are sent to. A pull consumer has none.",
    )
    event_types = Listed(
        EventPattern(),
        200,
        default=list,
        help_text="Names and patterns like order.*; an empty list matches everything.",
    )
    headers = MaskedHeaders(
        from_context=True,
        default=dict,
        help_text=f"Sent with every delivery. Values are shown as {MASK}; sending that keeps them.",
    )
    signing = Signing(
        OneOf(["v1", "v1a"]),
        2,
        default=list,
        help_text="Signature schemes: v1 (HMAC-SHA256) always, v1a adds Ed25519.",
    )
    timeout_ms = Whole(
        MIN_TIMEOUT_MS, MAX_TIMEOUT_MS, help_text="Maximum milliseconds of one attempt.", **OPTIONAL
    )
    max_attempts = Whole(
        1, MAX_ATTEMPTS, help_text="Failures until a delivery is dead.", **OPTIONAL
    )
    retry = RetryPolicy(
        help_text="Retry policy: a preset, a list of delays in seconds, or base, factor and cap.",
        **OPTIONAL,
    )
    retry_overrides = RetryOverrides(
        default=list,
        help_text="Retry settings for some event types. The first entry that matches applies.",
    )
    rate_limit = RateLimitSerializer(help_text="Requests per second, and the size of a burst.")
    max_in_flight = Whole(1, MAX_IN_FLIGHT, help_text="Maximum requests in flight.", **OPTIONAL)
    max_pumps = Whole(
        1, MAX_PUMPS, default=1, help_text="Maximum pumps that send to it at the same time."
    )
    http_version = OneOf(
        Consumer.HttpVersion.values,
        default="auto",
        help_text="auto: HTTP/2 over TLS if the endpoint offers it; 1.1: never.",
    )
    ordering = Flag(
        default=False,
        help_text="Send deliveries of one ordering key one at a time, in the order of acceptance.",
    )
    head_of_line = OneOf(
        ["skip", "block"],
        default="skip",
        help_text="After a dead delivery of an ordering key: skip sends the next, block holds the "
        "key.",
    )
    ack = Ack(help_text="How it acknowledges; null: by a 2xx response.", **OPTIONAL)
    lapsed_leases = OneOf(
        ["free", "charged"],
        default="free",
        help_text="For pull consumers. charged: each receive without an acknowledgement is a "
        "failed attempt, as in SQS; free: lapses and releases are not, up to twenty times.",
    )
    dead_letter_channel = SlugOf(
        help_text="Channel on which the messages of its dead deliveries are published.", **OPTIONAL
    )
    inbound_url = Text(from_context=True, read_only=True, allow_null=True)
    signing_keys = Listed(SigningKeySerializer(), read_only=True, source="secrets.all")
    effective = EffectiveSettingsSerializer(read_only=True, source="*")


class ConsumerWithSecretSerializer(ConsumerSerializer):
    """A consumer with the signing secret that was generated, if there is one."""

    shown_last = (*ConsumerSerializer.shown_last, "secret")

    secret = Text(
        from_context=True, read_only=True, help_text="whsec_..., shown once.", sometimes=True
    )


class ConsumerQuerySerializer(StrictSerializer):
    """Which consumers a list holds."""

    state = OneOf(Consumer.State.values, required=False, help_text="Default: all but retired.")
