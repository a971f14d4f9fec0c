"""Parse a replay's filter strictly, store it canonically and build its conditions."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from django.db.models import Q

from channels_app.core import ids
from channels_app.core.errors import FieldError, Invalid
from delivery.models import Replay
from delivery.serializers.filters import DeliveryFilter, ReplayFilterSerializer, of_types

FILTER = ReplayFilterSerializer()

Kind = Literal["finished", "missing"]


@dataclass(frozen=True, slots=True)
class ReplayFilter(DeliveryFilter):
    """Which deliveries to replay; empty fields do not restrict."""

    states: tuple[str, ...] = ("dead",)
    kind: Kind = "finished"
    """``missing`` selects messages of which the consumer has no delivery."""
    channel: str = ""
    consumer: str = ""
    """Its client id, unique in the channel."""
    ids: tuple[int, ...] = ()
    """Delivery ids in ascending order."""

    @property
    def is_plain(self) -> bool:
        """Whether only consumer and state decide."""
        return not (self.condition or self.ids)

    def within(self, channel: str, consumer: str) -> "ReplayFilter":
        """Return the same filter for one consumer."""
        return replace(self, channel=channel, consumer=consumer)

    def replayable(self, now: datetime) -> Q:
        """Return the condition for a delivery, besides its consumer and state.

        Excludes deliveries of expired messages, which would be cancelled instead of sent.
        """
        wanted = self.condition & _unexpired(now)
        return wanted & Q(id__in=self.ids) if self.ids else wanted

    def missing(self, consumer_event_types: Collection[str], now: datetime) -> Q:
        """Return the condition for a message to send to a consumer that registered later."""
        # A message that is not fanned out yet will reach the consumer anyway.
        dispatched = Q(state="dispatched") & of_types(consumer_event_types)
        return self.message_condition & _unexpired(now) & dispatched

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form that is stored, returned and audited. `parse` reads it."""
        missing = self.kind == "missing"
        form = {
            "channel": self.channel,
            "consumer": self.consumer,
            "states": [] if missing else list(self.states),
            "outcomes": list(self.outcomes),
            "status_codes": list(self.status_codes),
            "event_types": list(self.event_types),
            "from": self.begins and self.begins.isoformat(),
            "to": self.ends and self.ends.isoformat(),
            "ids": [ids.to_public(ids.DELIVERY, number) for number in self.ids],
        }
        return {name: value for name, value in form.items() if value}


def parse(data: object, *, at: str = "", kind: Kind = "finished") -> ReplayFilter:
    """Parse a filter from JSON.

    ``at`` is the path of ``data`` in the request, for the error's field. Raises Invalid with every
    error: a field that is unknown, of the wrong type, too long, empty, or without a known value.
    """
    try:
        values = FILTER.read(data)
    except Invalid as bad:
        raise Invalid.of([_placed(fault, at) for fault in bad.faults]) from None
    return ReplayFilter.of({**values, "kind": kind})


def store(wanted: ReplayFilter) -> dict[str, Any]:
    """Return the form for a Replay row."""
    return {"kind": wanted.kind, **wanted.to_json()}


def load(row: Replay) -> ReplayFilter:
    """Return the filter of a replay. Raises Invalid for one of another version."""
    return parse(row.conditions, kind=row.filter.get("kind", "finished"))


def _unexpired(now: datetime) -> Q:
    return Q(expires_at=None) | Q(expires_at__gt=now)


def _placed(fault: FieldError, at: str) -> FieldError:
    # An unknown field's name is the caller's own text, and may be invalid Unicode.
    name = fault.field.encode("ascii", "backslashreplace").decode()
    return FieldError(f"{at}.{name}".strip("."), fault.detail)
