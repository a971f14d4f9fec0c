"""Describe a delivery, its attempts and a test delivery."""

import base64
import codecs
from functools import cache
from operator import attrgetter
from typing import Any

from rest_framework.fields import SkipField

from channels_app.core import ids
from channels_app.models import Consumer
from channels_app.registry.data_encryption import StoredResponse
from channels_app.serializers.base import ResponseSerializer
from channels_app.serializers.fields import (
    Flag,
    Instant,
    Listed,
    Number,
    OneOf,
    Text,
    Whole,
)
from delivery.core.lifecycle import SHOWN_STATES, Reason
from delivery.core.outcome import Outcome
from delivery.core.timing import PARTS, Roundtrip
from delivery.models import Attempt, Delivery
from delivery.serializers.base import AddressField, PublicId

OUTCOMES = [outcome.value for outcome in Outcome]
ERROR = "One sentence; empty on success, unless the response broke off after its headers."


def message_id(**options: Any) -> PublicId:
    """The field of a message's id."""
    return PublicId(ids.MESSAGE, help_text="Ascending in the order of acceptance.", **options)


class State(OneOf):
    """A delivery's state."""

    def __init__(self) -> None:
        super().__init__(
            SHOWN_STATES,
            title="DeliveryState",
            source="shown",
            help_text="Retry-...: an attempt has failed since the last replay.",
        )


class DeliverySerializer(ResponseSerializer):
    """A delivery without its attempts."""

    id = PublicId(ids.DELIVERY, help_text="Ascending in the order of creation.")
    message_id = message_id()
    channel = Text(source="channel.slug")
    consumer = Text(source="consumer.client_id", help_text="The consumer's client id.")
    state = State()
    reason = OneOf([reason.value for reason in Reason], help_text="Why it is in this state.")
    outcome = OneOf(
        ["", *OUTCOMES], help_text="How the last attempt ended; empty before the first."
    )
    status_code = Whole(allow_null=True, help_text="HTTP status of the last response.")
    attempt_count = Whole(help_text="All attempts ever started.")
    failure_count = Whole(help_text="Failures since the last replay, of max_attempts.")
    next_attempt_at = Instant(
        allow_null=True, help_text="When it is due; null unless it is queued."
    )
    held_until = Instant(
        allow_null=True,
        help_text="In flight: when its lease ends. Awaiting-Ack: when the acknowledgement times "
        "out.",
    )
    event_type = Text()
    priority = Whole(0, 9)
    ordering_key = Text()
    replay_id = PublicId(ids.REPLAY, allow_null=True, help_text="The replay that queued it last.")
    accepted_at = Instant(help_text="When the broker accepted the message.")
    expires_at = Instant(allow_null=True, help_text="It is not sent after this instant.")
    finished_at = Instant(allow_null=True)
    url = AddressField(lambda row: f"deliveries/{row}", help_text="The delivery with its attempts.")

    @classmethod
    def show_of(cls, row: Delivery, consumer: Consumer) -> dict[str, Any]:
        """A delivery of a consumer that is loaded already, without a query."""
        row.consumer, row.channel = consumer, consumer.channel
        return cls.show(row)


class _Excerpt(Text):
    """The beginning of a body that is UTF-8; left out if it is not."""

    def get_attribute(self, instance: StoredResponse) -> str:
        """The text."""
        if (text := _text_of(instance.body)) is None:
            raise SkipField
        return text


class _BinaryExcerpt(Text):
    """The beginning of a body that is not UTF-8; left out if it is."""

    def get_attribute(self, instance: StoredResponse) -> str:
        """The bytes in base64."""
        if _text_of(instance.body) is not None:
            raise SkipField
        return base64.b64encode(instance.body).decode()


class ResponseExcerptSerializer(ResponseSerializer):
    """The beginning of a response (StoredResponse)."""

    described = "The beginning of a response; `body` if it is UTF-8, else `body_base64`."

    headers = Text(help_text="Status line and headers, up to 2 KiB.")
    body = _Excerpt(sometimes=True)
    body_base64 = _BinaryExcerpt(schema={"contentEncoding": "base64"}, sometimes=True)


class AttemptSerializer(ResponseSerializer):
    """One attempt; ``context_for`` says what its caller may see."""

    id = PublicId(ids.ATTEMPT)
    number = Whole(help_text="Counts from 1 across all replays.")
    started_at = Instant()
    outcome = OneOf(OUTCOMES)
    status_code = Whole(allow_null=True)
    error = Text(from_context=True, help_text=ERROR)
    connect_ms = Whole(allow_null=True, help_text="Null on a reused connection.")
    first_byte_ms = Whole(allow_null=True)
    total_ms = Whole()
    remote_address = Text()
    response = ResponseExcerptSerializer(from_context=True, allow_null=True)
    worker = Text(
        from_context=True,
        sometimes=True,
        help_text="The process that sent it; only for admin keys.",
    )

    @staticmethod
    def context_for(*, for_operator: bool, may_open: bool) -> dict[str, Any]:
        """Return the context that shows the worker to operators, and the response to some callers.

        A response may repeat the body: it is for callers who may read that, which on a sensitive
        channel requires the scope ``sensitive``.
        """

        @cache  # two fields need it
        def opened(attempt: Attempt) -> StoredResponse:
            return attempt.answer

        def response(attempt: Attempt) -> StoredResponse | None:
            return opened(attempt) if may_open else None

        def error(attempt: Attempt) -> str:
            # A worker's error message about an encrypted body is stored with the response.
            return opened(attempt).error if may_open else attempt.error

        context: dict[str, Any] = {"response": response, "error": error}
        return context | ({"worker": attrgetter("worker")} if for_operator else {})


class Thousandths(Number):
    """A number, rounded to three places."""

    def to_representation(self, value: float) -> float:
        """The number."""
        return round(value, 3)


class RoundtripSerializer(ResponseSerializer):
    """How long each part of a round trip took."""

    accepted_at = Instant()
    leased_at = Instant(help_text="When a worker claimed it.")
    sent_at = Instant(help_text="When the connection was ready.")
    responded_at = Instant(help_text="When the response had arrived.")
    acknowledged_at = Instant(help_text="When the broker had the acknowledgement.")
    total_ms = Thousandths(help_text="The sum of the parts.")

    def get_fields(self) -> dict[str, Any]:
        """Add a field for each part."""
        parts = {
            f"{name}_ms": _PartDuration(source=name, help_text=f"{words}, in milliseconds.")
            for name, words in PARTS
        }
        return super().get_fields() | parts


class DeliveryWithAttemptsSerializer(DeliverySerializer):
    """A delivery with its attempts.

    The context has functions of the row for ``roundtrip`` and ``attempts``, and what
    AttemptSerializer needs.
    """

    # Null until it is delivered.
    roundtrip = RoundtripSerializer(from_context=True, allow_null=True)
    attempts = Listed(
        AttemptSerializer(), from_context=True, help_text="The newest 200, oldest first."
    )


class _Utf8(Text):
    """Bytes that are UTF-8."""

    def to_representation(self, value: bytes) -> str:
        """The text."""
        return value.decode()


class ProbeSerializer(ResponseSerializer):
    """A test delivery with the consumer's response (transport.test_delivery.Probed)."""

    webhook_id = Text(help_text="Id of the sample; begins with `msg_test_`.")
    event_type = Text()
    body = _Utf8(help_text="The body that was sent.")
    delivered = Flag(
        source="answer.outcome.is_success", help_text="True if the consumer answered 2xx."
    )
    outcome = OneOf(OUTCOMES, source="answer.outcome.value")
    status_code = Whole(source="answer.status", allow_null=True)
    error = Text(source="answer.error", help_text=ERROR)
    connect_ms = Whole(
        source="answer.connect_ms", allow_null=True, help_text="Null on a reused connection."
    )
    first_byte_ms = Whole(source="answer.first_byte_ms", allow_null=True)
    total_ms = Whole(source="answer.total_ms")
    remote_address = Text(source="answer.remote_address")
    response = ResponseExcerptSerializer(source="stored_response")


class NoteSerializer(ResponseSerializer):
    """A message that was sent to a consumer."""

    message_id = message_id()
    delivery_id = PublicId(ids.DELIVERY, source="id")
    state = State()
    event_type = Text()
    accepted_at = Instant()
    finished_at = Instant(allow_null=True)


def _text_of(excerpt: bytes) -> str | None:
    """Return the text, whose last character may be cut; None if it is not UTF-8."""
    try:
        return codecs.utf_8_decode(excerpt, "strict", False)[0]
    except UnicodeDecodeError:
        return None


class _PartDuration(Thousandths):
    """The duration of one part of a round trip."""

    def get_attribute(self, instance: Roundtrip) -> float:
        """Milliseconds."""
        return next(part.ms for part in instance.parts if part.name == self.source)
