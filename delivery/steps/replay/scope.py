"""Preview a replay's filter: its consumers, a bounded count and a sample."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Q, QuerySet

from channels_app import history
from channels_app.errors import Conflict, Invalid, NotFound
from channels_app.models import Channel, Consumer, Message
from channels_app.rules import times
from channels_app.rules.fields import FieldError, InvalidValues
from channels_app.rules.tenants import OPERATOR, Tenant
from delivery.models import Counter, Delivery
from delivery.steps.replay import missing, windows
from delivery.steps.replay.filters import (
    BACKFILL_FIELDS,
    LARGEST_ID,
    SKEW,
    ReplayFilter,
    id_at,
    parse,
)

SCAN_ROWS = 100_000
"""Most rows that a count reads."""
SAMPLE = 10


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows match."""

    number: int
    exact: bool
    """Whether all rows were read. If not, ``number`` is how many of the first rows match, or the
    sum of counters if only consumer and state decide."""


def backfill(
    form: object, consumer: Consumer, *, tenant: Tenant = OPERATOR, now: datetime
) -> ReplayFilter:
    """Parse ``form`` as a filter of past messages for a consumer that registered later.

    Limits the filter to what the consumer's team may see. Raises Invalid for an unusable form, or
    one whose range ends before the team got access.
    """
    wanted = parse(form, names=BACKFILL_FIELDS, kind="missing")
    wanted = wanted.within(consumer.channel.slug, consumer.client_id)
    if tenant.everything or consumer.team_id is None:
        return wanted
    begins = history.begins(consumer.team_id, consumer.channel, now)
    if begins is None or (wanted.accepted_from and wanted.accepted_from >= begins):
        return wanted
    if wanted.accepted_to and wanted.accepted_to <= begins:
        detail = f"The team has access since {times.text(begins)}; choose a later instant."
        raise Invalid.of(InvalidValues([FieldError("to", detail)]))
    return replace(wanted, accepted_from=begins)


def consumers_of(
    wanted: ReplayFilter,
    *,
    channels: Collection[str] | None = None,
    tenant: Tenant = OPERATOR,
) -> list[Consumer]:
    """Return the consumers that a filter covers, except retired ones, oldest first.

    ``channels`` (slugs) and ``tenant`` restrict the result to what the caller may access; the rest
    is treated as nonexistent. Raises NotFound for the channel or the consumer, Conflict for a
    retired consumer.
    """
    known = Consumer.objects.select_related("channel")
    if channels is not None:
        known = known.filter(channel__slug__in=channels)
    if not tenant.everything:
        known = known.filter(Q(team_id=tenant.team_id))
    if wanted.consumer:
        return [_named(known, wanted)]
    if wanted.channel:
        granted = channels is None or wanted.channel in channels
        if not granted or not Channel.objects.filter(slug=wanted.channel).exists():
            raise _not_found("channel", wanted.channel)
        known = known.filter(channel__slug=wanted.channel)
    if wanted.ids:
        rows = Delivery.objects.filter(id__in=wanted.ids).values_list("consumer_id", flat=True)
        known = known.filter(id__in=set(rows))
    return list(known.exclude(state=Consumer.State.RETIRED).order_by("id"))


def count(wanted: ReplayFilter, consumers: Sequence[Consumer], now: datetime) -> Count:
    """Count the deliveries (``missing``: messages) that match now, exact up to `SCAN_ROWS`."""
    if wanted.kind == "missing":
        rows, exact = _missing(wanted, consumers[0], now)
        return Count(rows.count(), exact)
    matching, exact = _finished(wanted, consumers, now)
    if not exact and wanted.is_plain:
        return Count(sum(_counted(wanted, consumers).values()), False)
    return Count(matching.count(), exact)


def sample(wanted: ReplayFilter, consumers: Sequence[Consumer], now: datetime) -> list[Delivery]:
    """Return a few matching deliveries, oldest first; none for ``missing``."""
    if wanted.kind == "missing":
        return []
    return list(_finished(wanted, consumers, now)[0].order_by("id")[:SAMPLE])


def message_sample(
    wanted: ReplayFilter, consumers: Sequence[Consumer], now: datetime
) -> list[Message]:
    """Return a few of the messages that ``missing`` matches, oldest first."""
    rows = _missing(wanted, consumers[0], now)[0].order_by("id")
    return list(Message.with_open(rows)[:SAMPLE])


def message_upper(wanted: ReplayFilter, newest: int) -> int:
    """Return a key above every message accepted in the range, at most ``newest``."""
    return min(newest, id_at(wanted.accepted_to + SKEW)) if wanted.accepted_to else newest


def _named(known: QuerySet[Consumer], wanted: ReplayFilter) -> Consumer:
    consumer = known.filter(channel__slug=wanted.channel, client_id=wanted.consumer).first()
    if consumer is None:
        raise _not_found("consumer", wanted.consumer)
    if consumer.state == Consumer.State.RETIRED:
        raise Conflict("consumer_retired", "The consumer is retired: the broker sends it nothing.")
    return consumer


def _finished(
    wanted: ReplayFilter, consumers: Sequence[Consumer], now: datetime
) -> tuple[QuerySet[Delivery], bool]:
    """Return matching deliveries among at most `SCAN_ROWS` rows, and whether these are all."""
    matching = Delivery.objects.filter(wanted.condition(now), state__in=wanted.states)
    matching = matching.filter(id__gte=wanted.first_id)
    everyone = Q(consumer_id__in=[consumer.id for consumer in consumers])
    counted = _counted(wanted, consumers)
    if wanted.ids or sum(counted.values()) <= SCAN_ROWS:
        return matching.filter(everyone), True
    # The counters tell where the rows are: all small consumers, then a part of the next one.
    left, whole, part = SCAN_ROWS, list[int](), Q()
    for consumer_id, number in counted.items():
        if number > left:
            depth = left // len(wanted.states)
            ends = [
                windows.boundary(consumer_id, state, wanted.first_id - 1, LARGEST_ID, depth)
                for state in wanted.states
            ]
            part = Q(consumer_id=consumer_id, id__lte=min(ends))
            break
        left -= number
        whole.append(consumer_id)
    return matching.filter(Q(consumer_id__in=whole) | part), False


def _counted(wanted: ReplayFilter, consumers: Sequence[Consumer]) -> dict[int, int]:
    totals = Counter.read(consumer.id for consumer in consumers)
    return {
        consumer_id: sum(states[state] for state in wanted.states)
        for consumer_id, states in totals.items()
    }


def _missing(
    wanted: ReplayFilter, consumer: Consumer, now: datetime
) -> tuple[QuerySet[Message], bool]:
    rows = Message.objects.filter(
        channel_id=consumer.channel_id,
        id__gte=wanted.first_id,
        id__lte=message_upper(wanted, LARGEST_ID),
    )
    ids: Iterable[int] = rows.order_by("id").values_list("id", flat=True)[SCAN_ROWS : SCAN_ROWS + 1]
    condition = wanted.message_condition(consumer.event_types, now)
    matching = rows.filter(condition & missing.unknown_to(consumer))
    for end in ids:
        return matching.filter(id__lt=end), False
    return matching, True


def _not_found(noun: str, name: str) -> NotFound:
    return NotFound(f"unknown_{noun}", f"There is no {noun} {name} for this key.", field=noun)
