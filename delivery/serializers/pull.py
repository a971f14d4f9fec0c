"""Describe what workers of pull consumers send and receive."""

from typing import Any

from channels_app.core import ids, values
from channels_app.serializers.base import ResponseSerializer
from channels_app.serializers.fields import (
    Flag,
    Instant,
    JsonValue,
    Listed,
    Number,
    OneOf,
    Text,
    Whole,
)
from delivery.core.leases import MAX_TOKEN_LENGTH, MAX_WORKER_LENGTH
from delivery.serializers.base import UNSET, AddressField, PublicId, RequestSerializer
from delivery.serializers.deliveries import message_id

MAX_RECEIVED = 100
"""Maximum messages of one response, and leases of one request."""
MAX_WAIT_S = 20
MAX_LEASE_S = 43_200
MAX_DELAY_S = 86_400


class OneLine(Text):
    """Text whose control characters become spaces.

    For what programs report, such as the error of a handler, which must not fail for a line break.
    """

    def to_internal_value(self, data: Any) -> str:
        """The text in one line."""
        folded = values.without_controls(data) if isinstance(data, str) else data
        return super().to_internal_value(folded)


def _lease_s() -> Number:
    return Number(1, MAX_LEASE_S, help_text="Seconds until the lease ends; default 30.", **UNSET)


class ReceiveSerializer(RequestSerializer):
    """A call for messages."""

    max = Whole(1, MAX_RECEIVED, help_text="Maximum messages; default 10.", **UNSET)
    wait_s = Number(
        0, MAX_WAIT_S, help_text="Seconds to wait for the first message; default 0.", **UNSET
    )
    lease_s = _lease_s()
    worker_id = Text(
        MAX_WORKER_LENGTH,
        help_text="Name of the worker, shown to people; default: the key's id.",
        **UNSET,
    )
    keys = OneOf(
        ["any", "sticky"],
        help_text="sticky: messages of an ordering key go to the same `worker_id` while it keeps "
        "receiving; default any.",
        **UNSET,
    )
    resume = Flag(
        help_text="After a restart: first receive again what this `worker_id` still holds.",
        **UNSET,
    )
    auto_ack = Flag(help_text="Acknowledge before the response: delivery at most once.", **UNSET)


class LeaseExtensionOptions(RequestSerializer):
    """How long leases last from now on."""

    lease_s = _lease_s()


def _delay_s() -> Number:
    return Number(0, MAX_DELAY_S, help_text="Seconds until it can be received again.", **UNSET)


class LeaseReleaseOptions(RequestSerializer):
    """When released messages can be received again."""

    delay_s = _delay_s()


class NegativeAcknowledgementOptions(LeaseReleaseOptions):
    """Why messages failed, and when they can be received again."""

    error = OneLine(
        300, help_text="What failed, for the history. Control characters become spaces.", **UNSET
    )
    final = Flag(help_text="Do not retry: the delivery is dead at once.", **UNSET)


class AcknowledgementSerializer(RequestSerializer):
    """Leases whose messages are done."""

    leases = Listed(
        Text(MAX_TOKEN_LENGTH),
        MAX_RECEIVED,
        help_text="Leases from receiveMessages, of any consumers.",
    )


class NegativeAcknowledgementSerializer(NegativeAcknowledgementOptions, AcknowledgementSerializer):
    """Leases whose messages failed."""


class LeaseExtensionSerializer(LeaseExtensionOptions, AcknowledgementSerializer):
    """Leases that last longer."""


class LeaseReleaseSerializer(LeaseReleaseOptions, AcknowledgementSerializer):
    """Leases that are given back."""


class ReceivedMessageSerializer(ResponseSerializer):
    """A received message, as delivery/api/pull.py writes it by hand: workers ask for it often."""

    id = message_id()
    delivery_id = PublicId(ids.DELIVERY)
    lease = Text(allow_null=True, help_text="lse_..., for settling it; null with `auto_ack`.")
    lease_expires_at = Instant(
        allow_null=True, help_text="After this instant another worker may receive it."
    )
    attempt = Whole(help_text="Counts from 1 since the last replay.")
    max_attempts = Whole()
    event_type = Text()
    priority = Whole(0, 9)
    ordering_key = Text()
    replay = Flag(help_text="True for a replay.")
    accepted_at = Instant()
    content_type = Text()
    headers = JsonValue(
        None,
        {"type": "object", "additionalProperties": {"type": "string"}},
        help_text="Headers forwarded from the producer.",
    )
    body = Text(sometimes=True, help_text="The body, if it is UTF-8.")
    body_base64 = Text(schema={"contentEncoding": "base64"}, sometimes=True)
    body_url = Text(
        schema=AddressField.value_schema,
        sometimes=True,
        help_text="URL of the body, if it is too large for this response.",
    )


class ReceivedMessagesSerializer(ResponseSerializer):
    """The response to a call for messages."""

    messages = Listed(ReceivedMessageSerializer())
    now = Instant(help_text="The broker's time.")


class LeaseFailureSerializer(ResponseSerializer):
    """A lease for which a request failed."""

    lease = Text()
    error = OneOf(["expired", "unknown", "too_long"])


class LeaseResultsSerializer(ResponseSerializer):
    """What happened to the leases of a request."""

    done = Listed(
        Text(), help_text="Leases for which this, or an earlier identical call, succeeded."
    )
    failed = Listed(
        LeaseFailureSerializer(),
        help_text="`expired`: another worker has the message, or it is finished. `unknown`: not a "
        "lease of this caller. `too_long`: it cannot be extended further.",
    )
