"""Preview, request and cancel replays; rows and audit entries are written together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from channels_app.access.principal import Principal
from channels_app.core import ids, times
from channels_app.core.errors import Conflict, FieldError, Invalid, NotFound
from channels_app.database import transactions
from channels_app.models import AuditEntry, Channel, Consumer, Message, new_id, reseed_ids
from channels_app.registry import teams
from delivery.core.lifecycle import FINISHED, DeliveryState
from delivery.models import Counter, Delivery, Replay
from delivery.replay import runner
from delivery.replay.filters import ReplayFilter, store
from delivery.replay.runner import Pace, requeue

SCAN_ROWS = 100_000
"""Most rows that a count reads."""
SAMPLE = 10
MAX_RUNNING = 20
"""Replays that one tenant may run at once: each takes a slice of each maintenance round."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows match."""

    number: int
    exact: bool
    """Whether all rows were read. If not, ``number`` is how many of the first rows match, or the
    sum of counters if only consumer and state decide."""


def backfill(
    values: Mapping[str, Any], consumer: Consumer, principal: Principal, *, now: datetime
) -> ReplayFilter:
    """Return the filter of past messages for a consumer that registered later.

    ``values`` are what a BackfillFilterSerializer has checked. Limits the filter to what the
    consumer's team may see. Raises Invalid for a range that ends before the team got access.
    """
    wanted = ReplayFilter.of({**values, "kind": "missing"})
    wanted = wanted.within(consumer.channel.slug, consumer.client_id)
    if principal.is_operator or consumer.team_id is None:
        return wanted
    begins = teams.access_began(consumer.team_id, consumer.channel, now)
    if begins is None or (wanted.begins and wanted.begins >= begins):
        return wanted
    if wanted.ends and wanted.ends <= begins:
        detail = f"The team has access since {times.text(begins)}; choose a later instant."
        raise Invalid.of([FieldError("to", detail)])
    return replace(wanted, begins=begins)


def consumers_of(wanted: ReplayFilter, principal: Principal) -> list[Consumer]:
    """Return the consumers that a filter covers, except retired ones, oldest first.

    What the principal may not access is treated as nonexistent. Raises NotFound for the channel or
    the consumer, Conflict for a retired consumer.
    """
    consumers = Consumer.objects.select_related("channel").filter(principal.owned())
    if principal.channels and not principal.is_operator:
        consumers = consumers.filter(channel__slug__in=principal.channels)
    if wanted.consumer:
        return [_named(consumers, wanted)]
    if wanted.channel:
        if (
            not principal.may_use(wanted.channel)
            or not Channel.objects.filter(slug=wanted.channel).exists()
        ):
            raise _not_found("channel", wanted.channel)
        consumers = consumers.filter(channel__slug=wanted.channel)
    if wanted.ids:
        rows = Delivery.objects.filter(id__in=wanted.ids).values_list("consumer_id", flat=True)
        consumers = consumers.filter(id__in=set(rows))
    return list(consumers.exclude(state=Consumer.State.RETIRED).order_by("id"))


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


def create(
    wanted: ReplayFilter,
    consumers: Sequence[Consumer],
    principal: Principal,
    *,
    now: datetime,
    rate_per_second: float | None = None,
) -> Replay:
    """Store a replay of everything that matches now; `run_slice` executes it.

    ``consumers`` comes from `consumers_of`. Rows created later are not part of it. Raises Invalid
    for a filter that covers the whole installation, Conflict when too many replays are running.
    """
    if not (wanted.channel or wanted.ids):
        raise Invalid("invalid_filter", "Name a channel, or ids of deliveries.", field="channel")
    matched = count(wanted, consumers, now)
    newest = _newest(wanted)

    def write() -> Replay:
        _check_room(principal)
        replay = Replay.objects.create(
            id=new_id(),
            filter=store(wanted),
            consumer_ids=[consumer.id for consumer in consumers],
            rate_per_second=rate_per_second,
            reason=principal.reason,
            requested_by=principal.actor,
            producer_id=principal.producer_id,
            team_id=principal.team_id,
            matched_count=matched.number,
            upper_id=newest,
            next_due_at=now,
            created_at=now,
        )
        after = {
            "filter": store(wanted),
            "matched": matched.number,
            "rate_per_second": rate_per_second,
        }
        AuditEntry.record(
            principal.actor,
            "replay.create",
            _target(replay),
            team_id=_team_of(replay),
            reason=principal.reason,
            after=after,
        )
        return replay

    return transactions.run(write, on_collision=reseed_ids)


def cancel(replay_id: int, principal: Principal, *, now: datetime) -> Replay:
    """Stop a running replay. Deliveries that it has queued are still sent.

    Raises Conflict when it has ended, NotFound when there is none.
    """

    def write() -> Replay:
        # Waits for a slice in progress.
        replay = Replay.objects.select_for_update().filter(id=replay_id).first()
        if replay is None:
            raise NotFound("unknown_replay", "There is no such replay.")
        if replay.state != Replay.State.RUNNING:
            raise Conflict("replay_ended", f"The replay is {replay.state} already.")
        before = {"state": replay.state}
        replay.state = Replay.State.CANCELLED
        replay.finished_at = now
        replay.version += 1
        replay.save()
        after = {"state": replay.state, "replayed": replay.replayed_count}
        AuditEntry.record(
            principal.actor,
            "replay.cancel",
            _target(replay),
            team_id=_team_of(replay),
            reason=principal.reason,
            before=before,
            after=after,
        )
        return replay

    return transactions.run(write)


def replay_one(delivery_id: int, principal: Principal, *, now: datetime, slot: int = 0) -> Delivery:
    """Queue one finished delivery now, with its failures reset, and store a finished Replay.

    Raises NotFound, or Conflict when it is not finished, its consumer was retired, or its message
    has expired.
    """

    def write() -> Delivery:
        row = Delivery.objects.select_for_update().filter(id=delivery_id).first()
        if row is None:
            raise NotFound("unknown_delivery", "There is no such delivery.")
        consumer = Consumer.objects.select_related("channel").get(id=row.consumer_id)
        _check_replayable(row, consumer, now)
        wanted = _filter_of(row).within(consumer.channel.slug, consumer.client_id)
        replay = Replay.objects.create(
            id=new_id(),
            state=Replay.State.FINISHED,
            filter=store(wanted),
            consumer_ids=[consumer.id],
            consumer_index=1,
            reason=principal.reason,
            requested_by=principal.actor,
            producer_id=principal.producer_id,
            team_id=principal.team_id,
            matched_count=1,
            replayed_count=1,
            upper_id=row.id,
            next_due_at=now,
            created_at=now,
            finished_at=now,
        )
        requeue(
            [row.id],
            states=wanted.states,
            replay_id=replay.id,
            pace=Pace(now, None),
            first_place=0,
            slot=slot,
        )
        after = {"replay": ids.to_public(ids.REPLAY, replay.id), "state": "queued"}
        target = f"delivery:{ids.to_public(ids.DELIVERY, row.id)}"
        before = {"state": row.state}
        AuditEntry.record(
            principal.actor,
            "delivery.replay",
            target,
            team_id=consumer.team_id,
            reason=principal.reason,
            before=before,
            after=after,
        )
        return Delivery.objects.get(id=row.id)

    return transactions.run(write, on_collision=reseed_ids)


def _named(consumers: QuerySet[Consumer], wanted: ReplayFilter) -> Consumer:
    consumer = consumers.filter(channel__slug=wanted.channel, client_id=wanted.consumer).first()
    if consumer is None:
        raise _not_found("consumer", wanted.consumer)
    if consumer.state == Consumer.State.RETIRED:
        raise Conflict("consumer_retired", "The consumer is retired: the broker sends it nothing.")
    return consumer


def _finished(
    wanted: ReplayFilter, consumers: Sequence[Consumer], now: datetime
) -> tuple[QuerySet[Delivery], bool]:
    """Return matching deliveries among at most `SCAN_ROWS` rows, and whether these are all."""
    matching = Delivery.objects.filter(wanted.replayable(now), state__in=wanted.states)
    matching = matching.filter(id__gte=wanted.first_id)
    everyone = Q(consumer_id__in=[consumer.id for consumer in consumers])
    counted = _counted(wanted, consumers)
    if wanted.ids or sum(counted.values()) <= SCAN_ROWS:
        return matching.filter(everyone), True
    # The counters tell where the rows are: all small consumers, then a part of the next one.
    room, whole, part = SCAN_ROWS, list[int](), Q()
    for consumer_id, number in counted.items():
        if number > room:
            depth = room // len(wanted.states)
            ends = [
                runner.boundary(consumer_id, state, wanted.first_id - 1, ids.LARGEST, depth)
                for state in wanted.states
            ]
            part = Q(consumer_id=consumer_id, id__lte=min(ends))
            break
        room -= number
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
        id__lte=wanted.last_message_id,
    )
    ends: Iterable[int] = rows.order_by("id").values_list("id", flat=True)[
        SCAN_ROWS : SCAN_ROWS + 1
    ]
    condition = wanted.missing(consumer.event_types, now)
    matching = rows.filter(condition & runner.unknown_to(consumer))
    for end in ends:
        return matching.filter(id__lt=end), False
    return matching, True


def _not_found(noun: str, name: str) -> NotFound:
    return NotFound(f"unknown_{noun}", f"There is no {noun} {name} for this key.", field=noun)


def _check_room(principal: Principal) -> None:
    running = Replay.objects.filter(
        state=Replay.State.RUNNING, producer_id=principal.producer_id, team_id=principal.team_id
    )
    if running.count() >= MAX_RUNNING:
        raise Conflict(
            "too_many_replays",
            f"{MAX_RUNNING} replays are running. Wait until one has ended, or cancel one.",
        )


def _newest(wanted: ReplayFilter) -> int:
    """Return the highest existing key. A new key may be lower: other clocks may be ahead."""
    model = Message if wanted.kind == "missing" else Delivery
    newest = model.objects.order_by("-id").values_list("id", flat=True).first() or 0
    return min(newest, wanted.last_message_id) if wanted.kind == "missing" else newest


def _check_replayable(row: Delivery, consumer: Consumer, now: datetime) -> None:
    if DeliveryState(row.state) not in FINISHED:
        raise Conflict(
            "not_finished",
            f"The delivery is {row.state}: only finished deliveries can be replayed.",
        )
    if consumer.state == Consumer.State.RETIRED:
        raise Conflict("consumer_retired", "The consumer is retired: the broker sends it nothing.")
    if row.expires_at is not None and row.expires_at <= now:
        raise Conflict("expired", "The message has expired: the broker does not send it any more.")


def _filter_of(row: Delivery) -> ReplayFilter:
    return ReplayFilter(states=(row.state,), ids=(row.id,))


def _team_of(replay: Replay) -> int | None:
    """Return the team of the consumers; None if they belong to several teams."""
    consumers = Consumer.objects.filter(id__in=replay.consumer_ids)
    teams = set(consumers.values_list("team_id", flat=True).distinct())
    return teams.pop() if len(teams) == 1 else None


def _target(replay: Replay) -> str:
    return f"replay:{ids.to_public(ids.REPLAY, replay.id)}"
