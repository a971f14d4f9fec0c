"""Describe which deliveries and messages are meant: in lists, on pages and in replays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self

from django.db.models import Q, QuerySet
from rest_framework.serializers import ValidationError

from channels_app.core import ids, names
from channels_app.database import clock
from channels_app.database.raw import by_index
from channels_app.models import Message
from channels_app.serializers.fields import (
    Digits,
    EventPattern,
    Listed,
    OneOf,
    Slug,
    Text,
    Whole,
    WrittenInstant,
)
from delivery.core.lifecycle import (
    FINISHED,
    LABELS,
    RETRIES,
    SHOWN_STATES,
    DeliveryState,
    attempts_at_first,
)
from delivery.models import Delivery, OrderingKey, Replay
from delivery.serializers.base import PublicId, RequestSerializer
from delivery.serializers.deliveries import OUTCOMES

SKEW = timedelta(minutes=5)
"""Keys contain the clock of the process that created them, which may differ this much from the
database's. With a larger difference consumers would reject the signed timestamps."""
MAX_EVENT_TYPES = 100
MAX_STATUS_CODES = 100
STATUS_CODES = (100, 999)
"""The least and the greatest status code that a response can have, known or not."""
MAX_IDS = 1000
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
MAX_WIDTH_S = 86_400
SPANS = {
    **{"1h": timedelta(hours=1), "24h": timedelta(hours=24)},
    **{"7d": timedelta(days=7), "30d": timedelta(days=30)},
}


def _shown(state: DeliveryState) -> dict[str, tuple[str, Q]]:
    """Return the stored state and the condition for each name of lifecycle.shown_state."""
    name, stored, first = LABELS[state].name, state.value, attempts_at_first(state)
    if state not in RETRIES:
        return {name: (stored, Q())}
    return {
        name: (stored, Q(failure_count=0, attempt_count__lte=first)),
        RETRIES[state]: (stored, Q(failure_count__gt=0) | Q(attempt_count__gt=first)),
    }


STATES: dict[str, tuple[str, Q]] = {
    **{state.value: (state.value, Q()) for state in DeliveryState},
    **{name: shown for state in LABELS for name, shown in _shown(state).items()},
}
"""Names of states: as stored, or exactly as shown."""


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which deliveries; empty fields do not restrict. Some of them describe messages as well."""

    states: tuple[str, ...] = ()
    """Names of `STATES`: one, or several as stored."""
    outcomes: tuple[str, ...] = ()
    """Outcomes of the last attempt."""
    status_codes: tuple[int, ...] = ()
    """Status codes of the last response."""
    event_types: tuple[str, ...] = ()
    """Names and patterns as in consumers' filters (channels_app/core/names.py)."""
    begins: datetime | None = None
    """When the message was accepted; inclusive."""
    ends: datetime | None = None
    """Exclusive."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the filter of what a serializer has checked; one value stands for a list of it."""
        given = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        for field in fields(cls):
            if field.name in given and isinstance(field.default, tuple):
                value = given[field.name]
                given[field.name] = tuple(sorted(value)) if isinstance(value, list) else (value,)
        return cls(**given)

    @property
    def first_id(self) -> int:
        """Return a key below every row accepted in the range."""
        return ids.id_at(self.begins - SKEW) if self.begins else 0

    @property
    def last_message_id(self) -> int:
        """Return a key above every message accepted in the range.

        Deliveries may be created any time after their message was accepted.
        """
        return ids.id_at(self.ends + SKEW) if self.ends else ids.LARGEST

    def ranges(self, consumer_id: int) -> list[QuerySet[Delivery]]:
        """Return one range of the index (consumer, state, id) per state, for database.keyset."""
        rows = Delivery.objects.filter(consumer_id=consumer_id)
        if self.begins:
            rows = rows.filter(id__gte=self.first_id)
        states = [STATES[name][0] for name in self.states] or list(DeliveryState)
        return [by_index(rows, "delivery_list").filter(state=state) for state in states]

    @property
    def condition(self) -> Q:
        """Return the condition for a delivery, besides its consumer and stored state."""
        wanted = self.message_condition
        for name in self.states:
            wanted &= STATES[name][1]
        if self.outcomes:
            wanted &= Q(outcome__in=self.outcomes)
        if self.status_codes:
            wanted &= Q(status_code__in=self.status_codes)
        return wanted

    @property
    def message_condition(self) -> Q:
        """Return the condition for a message."""
        wanted = of_types(self.event_types)
        if self.begins:
            wanted &= Q(accepted_at__gte=self.begins)
        if self.ends:
            wanted &= Q(accepted_at__lt=self.ends)
        return wanted


def of_types(patterns: Iterable[str]) -> Q:
    """Return the condition for rows whose event type matches; without ``patterns`` all match.

    The result is the same as that of core.names.matches.
    """
    wanted = Q()
    for pattern in patterns:
        if pattern == names.EVERYTHING:
            return Q()
        if pattern.endswith(".*"):
            # A range instead of LIKE, which ignores case on SQLite. "/" is the character after ".".
            below = pattern[:-1]
            wanted |= Q(event_type__gte=below, event_type__lt=f"{below[:-1]}/")
        else:
            wanted |= Q(event_type=pattern)
    return wanted


class StoredOrShown(OneOf):
    """A state as stored (`queued`) or as shown (`Queued`); code generators tell the two apart."""

    def __init__(self, states: Iterable[str], **options: Any) -> None:
        super().__init__(states, **options)
        kinds = [
            ("" if state == state.lower() else "SHOWN_") + state.replace("-", "_").upper()
            for state in self._words
        ]
        self.value_schema = {**self.value_schema, "x-enum-varnames": kinds}


class Finished(OneOf):
    """A final state, as stored, or as the API displays it ("Dead")."""

    def __init__(self, **options: Any) -> None:
        super().__init__(sorted(state.value for state in FINISHED), **options)

    def to_internal_value(self, data: Any) -> str:
        """As stored."""
        is_shown = isinstance(data, str) and data.istitle()
        return super().to_internal_value(data.lower() if is_shown else data)


class StoredInstant(WrittenInstant):
    """An instant that every database can store and every key can express."""

    def to_internal_value(self, data: Any) -> datetime:
        """The instant."""
        instant = super().to_internal_value(data)
        if not EARLIEST <= instant < LATEST:
            raise ValidationError("Write an instant between the years 2000 and 9000.")
        return instant


class QueryInstant(StoredInstant):
    """The same as text."""

    value_schema = {"type": "string", "description": "RFC 3339, or milliseconds since 1970."}


class RangeSerializer(RequestSerializer):
    """A range of instants: when messages were accepted."""

    instant: ClassVar[type[StoredInstant]] = StoredInstant
    bounds: ClassVar = ("Accepted at this instant or later.", "Accepted before this instant.")

    def get_fields(self) -> dict[str, Any]:
        """Add ``from``, which is a keyword in Python, and ``to``."""
        begins, ends = (
            self.instant(source=source, required=False, help_text=text)
            for source, text in zip(("begins", "ends"), self.bounds, strict=True)
        )
        return {**super().get_fields(), "from": begins, "to": ends}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """A range that is not empty."""
        begins, ends = attrs.get("begins"), attrs.get("ends")
        if begins and ends and begins >= ends:
            raise ValidationError({"to": "The range ends before it begins."})
        return attrs


class BackfillFilterSerializer(RangeSerializer):
    """Which messages. An empty list is invalid: it might mean all or nothing."""

    event_types = Listed(
        EventPattern(),
        MAX_EVENT_TYPES,
        least=1,
        required=False,
        help_text="Names, `order.*`, or `*`.",
    )


class ReplayFilterSerializer(BackfillFilterSerializer):
    """Which deliveries."""

    described = (
        "Finished deliveries that match all conditions. A channel or ids are required. Null means "
        "absent; an empty list is refused."
    )

    channel = Slug(required=False)
    consumer = Slug(required=False, help_text="A client id on that channel.")
    states = Listed(Finished(), len(FINISHED), least=1, default=lambda: ["dead"])
    outcomes = Listed(OneOf(OUTCOMES), len(OUTCOMES), least=1, required=False)
    status_codes = Listed(Whole(*STATUS_CODES), MAX_STATUS_CODES, least=1, required=False)
    ids = Listed(PublicId(ids.DELIVERY), MAX_IDS, least=1, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """A consumer is known by its channel."""
        if "consumer" in attrs and "channel" not in attrs:
            raise ValidationError({"channel": "Name the consumer's channel as well."})
        return super().validate(attrs)


class QuerySerializer(RangeSerializer):
    """Which messages, as the parameters of a URL."""

    instant = QueryInstant
    event_type = EventPattern(
        source="event_types",
        required=False,
        help_text="A name, `order.*` for all below it, or `*`.",
    )


class MessageQuerySerializer(QuerySerializer):
    """Which messages a list holds."""

    state = StoredOrShown(
        [*Message.State.values, "scheduled", *Message.Shown.values],
        required=False,
        help_text="As stored or as shown.",
    )
    idempotency_key = Text(
        required=False,
        help_text="Only the message published with this key of the caller, within the key's "
        "window.",
    )


class DeadLetterQuerySerializer(QuerySerializer):
    """Which dead letters a list holds."""

    outcome = OneOf(
        OUTCOMES, source="outcomes", required=False, help_text="Outcome of the last attempt."
    )
    status_code = Digits(
        *STATUS_CODES,
        source="status_codes",
        required=False,
        help_text="HTTP status of the last response.",
    )


class DeliveryQuerySerializer(DeadLetterQuerySerializer):
    """Which deliveries a list holds."""

    state = StoredOrShown(
        STATES,
        source="states",
        required=False,
        help_text="As stored (`queued` includes retries), or exactly as shown.",
    )


class Since(OneOf):
    """A span until now."""

    def to_internal_value(self, data: Any) -> Any:
        """When it begins."""
        return clock.now() - SPANS[super().to_internal_value(data)]


class DeadLetterPageSerializer(DeadLetterQuerySerializer):
    """Which dead letters a page holds."""

    since = Since(SPANS, source="begins", required=False)


class DeliveryPageSerializer(DeadLetterPageSerializer):
    """Which deliveries a page holds."""

    state = OneOf(SHOWN_STATES, source="states", required=False)


class ReplayPageSerializer(DeadLetterQuerySerializer):
    """Which deliveries a page replays."""

    state = Finished(source="states", default="dead")


class NoteQuerySerializer(RequestSerializer):
    """Which messages sent to a consumer a list holds."""

    after = PublicId(
        ids.MESSAGE,
        required=False,
        help_text="Id of the last known message; the list begins after it.",
    )


class ReplayQuerySerializer(RequestSerializer):
    """Which replays a list holds."""

    state = OneOf(Replay.State.values, required=False)


class OrderingKeyQuerySerializer(RequestSerializer):
    """Which ordering keys a list holds."""

    state = OneOf(OrderingKey.STATES, required=False)
    ordering_key = Text(required=False, help_text="Only this key.")


class TimelineQuerySerializer(RangeSerializer):
    """When messages are due."""

    instant = QueryInstant
    bounds = ("Due at this instant or later; never before now.", "Due before this instant.")


class HistogramQuerySerializer(TimelineQuerySerializer):
    """When messages are due, and how they are counted."""

    width_s = Digits(
        1,
        MAX_WIDTH_S,
        default=60,
        help_text="Seconds of a bucket; default 60. Without `to` there are 60 buckets.",
    )
