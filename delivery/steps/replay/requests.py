"""Request and cancel replays; rows and audit entries are written together."""

from collections.abc import Sequence
from datetime import datetime

from channels_app import transactions
from channels_app.errors import Conflict, Invalid, NotFound
from channels_app.models import AuditEntry, Consumer, Message, new_id
from channels_app.rules import ids
from delivery.models import Delivery, Replay
from delivery.rules.lifecycle import FINISHED, DeliveryState
from delivery.rules.principal import Principal
from delivery.steps.replay.filters import ReplayFilter, store
from delivery.steps.replay.requeue import Pace, requeue
from delivery.steps.replay.scope import count, message_upper

MAX_RUNNING = 20
"""Replays that one tenant may run at once: each takes a slice of each maintenance round."""


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

    return transactions.run(write, on_collision=new_id.reseed)


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
        wanted = _one(row).within(consumer.channel.slug, consumer.client_id)
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

    return transactions.run(write, on_collision=new_id.reseed)


def _team_of(replay: Replay) -> int | None:
    """Return the team of the consumers; None if they belong to several teams."""
    consumers = Consumer.objects.filter(id__in=replay.consumer_ids)
    teams = set(consumers.values_list("team_id", flat=True).distinct())
    return teams.pop() if len(teams) == 1 else None


def _one(row: Delivery) -> ReplayFilter:
    return ReplayFilter(states=(row.state,), ids=(row.id,))


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
    return message_upper(wanted, newest) if wanted.kind == "missing" else newest


def _target(replay: Replay) -> str:
    return f"replay:{ids.to_public(ids.REPLAY, replay.id)}"
