"""Register, pause and resume a schedule, which publishes a message on a channel repeatedly."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from channels_app import failpoints
from channels_app.access.principal import Principal
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import NotFound, PreconditionFailed
from channels_app.core.http import ALWAYS, Precondition
from channels_app.core.recurrence import Content
from channels_app.database import clock, transactions
from channels_app.models import AuditEntry, Channel, Schedule, ScheduleBody
from channels_app.registry import data_encryption
from channels_app.registry.resource import WriteResult
from channels_app.serializers.schedules import TIMING, ScheduleSerializer

T = TypeVar("T")
State = Schedule.State
_RHYTHM = ("cron", "every_ms", "timezone", "start_at", "end_at")


@dataclass(frozen=True, slots=True)
class Order:
    """One request about a schedule: which one, who asks and why, and the precondition."""

    channel: str
    name: str
    principal: Principal
    condition: Precondition = ALWAYS

    def record(
        self,
        action: str,
        schedule: Schedule,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        """Write an audit entry."""
        AuditEntry.record(
            self.principal.actor,
            action,
            f"schedule:{self.channel}/{self.name}",
            team_id=schedule.owner_team_id,
            reason=self.principal.reason,
            before=before,
            after=after,
        )


def put(order: Order, cleaned: Mapping[str, Any], content: Content) -> WriteResult[Schedule]:
    """Create the schedule or replace its settings; writing the same values again changes nothing.

    ``cleaned`` comes from a ScheduleSerializer. A paused schedule stays paused. Raises NotFound
    (unknown channel, or another owner's schedule) and PreconditionFailed.
    """
    return _run(lambda: _write(order, cleaned, content))


def patch(
    order: Order, renew: Callable[[Schedule], tuple[Mapping[str, Any], Content]]
) -> WriteResult[Schedule]:
    """Replace the settings of an existing schedule by those that ``renew`` returns for it.

    The schedule is locked meanwhile. Raises NotFound (also for another owner's),
    PreconditionFailed, and what ``renew`` raises.
    """

    def write() -> WriteResult[Schedule]:
        schedule = find(order)
        return _store(order, schedule, *renew(schedule))

    return _run(write)


def remove(order: Order) -> None:
    """Delete a schedule; its messages stay. Raises NotFound and PreconditionFailed."""

    def delete() -> None:
        schedule = find(order)
        order.record("schedule.delete", schedule, _audited(schedule), None)
        schedule.delete()

    _run(delete)


def pause(order: Order) -> WriteResult[Schedule]:
    """Publish nothing until it is resumed. Raises NotFound and PreconditionFailed."""
    return _run(lambda: _switch(order, State.PAUSED, "schedule.pause"))


def resume(order: Order) -> WriteResult[Schedule]:
    """Continue with the next occurrence from now on; those during the pause are skipped.

    Raises NotFound and PreconditionFailed.
    """
    return _run(lambda: _switch(order, State.ACTIVE, "schedule.resume"))


def find(order: Order) -> Schedule:
    """The schedule, locked until the transaction ends. Raises NotFound and PreconditionFailed."""
    # Without a join, which would also lock the channel.
    channel_ids = list(Channel.objects.filter(slug=order.channel).values_list("id", flat=True))
    rows = Schedule.objects.select_for_update()
    schedule = rows.filter(channel_id__in=channel_ids, name=order.name).first()
    if schedule is None or not order.principal.may_change(
        schedule.producer_id, schedule.owner_team_id
    ):
        raise NotFound("unknown_schedule", f"The channel has no schedule {order.name}.")
    order.condition.require(schedule.version, "schedule")
    return schedule


def body_of(schedule: Schedule) -> bytes:
    """The body that it publishes. Raises core.encryption.Unreadable."""
    return data_encryption.decrypt_schedule(
        schedule.pk, bytes(schedule.body.data), schedule.body.key_id
    )


def _run(work: Callable[[], T]) -> T:
    """Run one change; of two concurrent creations the second one replaces the first."""

    def write() -> T:
        done = work()
        failpoints.reach("in_schedule")
        return done

    done = transactions.run(write, on_collision=lambda: None)
    failpoints.reach("after_schedule")
    return done


def _write(order: Order, cleaned: Mapping[str, Any], content: Content) -> WriteResult[Schedule]:
    channel = Channel.objects.filter(slug=order.channel).first()
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {order.channel}.")
    if Schedule.objects.filter(channel=channel, name=order.name).exists():
        return _store(order, find(order), cleaned, content)
    if not order.condition.holds(None):
        raise PreconditionFailed("stale_version", "The schedule does not exist any more.")
    schedule = Schedule(channel=channel, name=order.name, producer=order.principal.producer)
    if order.principal.producer is None:
        schedule.team_id = order.principal.team_id
    return _store(order, schedule, cleaned, content)


def _store(
    order: Order, schedule: Schedule, cleaned: Mapping[str, Any], content: Content
) -> WriteResult[Schedule]:
    exists = schedule.pk is not None
    before = _audited(schedule) if exists else None
    rhythm = [getattr(schedule, part) for part in _RHYTHM]
    _set(schedule, cleaned, content)
    after = _audited(schedule, content.body)
    if before == after:
        return WriteResult(schedule)
    if not exists or rhythm != [getattr(schedule, part) for part in _RHYTHM]:
        schedule.next_at = None
    _plan(schedule, clock.now())
    schedule.save()
    _keep_body(schedule, content.body, encrypt=schedule.channel.encrypt_bodies)
    order.record("schedule.update" if exists else "schedule.create", schedule, before, after)
    return WriteResult(schedule, created=not exists, changed=True)


def _set(schedule: Schedule, cleaned: Mapping[str, Any], content: Content) -> None:
    for part in TIMING:
        setattr(schedule, part, cleaned[part])
    schedule.cron = cleaned["cron"] or ""
    schedule.content_type = content.content_type
    schedule.event_type = content.event_type
    schedule.priority = content.priority
    schedule.ordering_key = content.ordering_key
    schedule.headers = dict(content.headers)
    schedule.body_bytes = len(content.body)


def _plan(schedule: Schedule, now: datetime) -> None:
    """Set the state and the next occurrence from the other fields; keep a known occurrence."""
    if schedule.state == State.PAUSED:
        schedule.next_at = None
        return
    if schedule.limit is not None and schedule.fired_count >= schedule.limit:
        schedule.next_at = None
    elif schedule.next_at is None:
        schedule.next_at = schedule.timetable.after(now)
    schedule.state = State.ACTIVE if schedule.next_at else State.ENDED


def _switch(order: Order, wanted: Schedule.State, action: str) -> WriteResult[Schedule]:
    schedule = find(order)
    before = {"state": schedule.state}
    if (schedule.state == State.PAUSED) == (wanted == State.PAUSED):
        return WriteResult(schedule)
    schedule.state, schedule.next_at = wanted, None
    _plan(schedule, clock.now())
    schedule.save()
    order.record(action, schedule, before, {"state": schedule.state})
    return WriteResult(schedule, changed=True)


def _keep_body(schedule: Schedule, body: bytes, *, encrypt: bool) -> None:
    data, key_id = data_encryption.encrypt_schedule(schedule.pk, body, encrypt=encrypt)
    schedule.body, _ = ScheduleBody.objects.update_or_create(
        schedule_id=schedule.pk, defaults={"data": data, "key_id": key_id}
    )


def _audited(schedule: Schedule, body: bytes | None = None) -> dict[str, Any]:
    """The settings for audit entries and comparisons; the body as a digest only."""
    try:
        body = body_of(schedule) if body is None else body
    except Unreadable:
        return ScheduleSerializer.describe(schedule) | {"body_sha256": ""}
    return ScheduleSerializer.describe(schedule) | {"body_sha256": hashlib.sha256(body).hexdigest()}
