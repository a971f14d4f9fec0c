"""Publish the messages of due schedules, each occurrence once (S4-06).

The schedule's row is the lock: its holder publishes, and moves ``next_at`` in the transaction that
stores the message. Concurrent processes skip a locked row; later ones see another ``next_at`` and
version.

Each maintenance process has a schedule runner, a thread beside the sweeps: a sweep that deletes old
rows may delay the others, and a message that is due every half second cannot wait for it. The lock
on a schedule's row decides which runner fires it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import Error as DatabaseFailure
from django.db import close_old_connections, connection
from django.db.models import F, Min

from channels_app import failpoints
from channels_app.change_marker import change_marker
from channels_app.core import ids, recurrence
from channels_app.core.encryption import KeyMissing, Unreadable
from channels_app.core.errors import BrokerError, Conflict, OverQuota, StorageFull
from channels_app.core.recurrence import SKIP_IF_UNDELIVERED, Turn
from channels_app.database import clock, raw, transactions
from channels_app.database.raw import dialect
from channels_app.ingest import accept, limits, publication, recurring
from channels_app.ingest.accept import Accepted, Publication
from channels_app.ingest.limits import Reservation
from channels_app.models import Message, Schedule, new_id, reseed_ids
from channels_app.registry import schedules
from channels_app.registry.cache import ChannelConfig, config_cache
from channels_app.registry.schedules import Order
from delivery import metrics
from delivery.models import Delivery
from delivery.models.counter import OPEN
from delivery.processes import registration

logger = logging.getLogger(__name__)
_DUE = f"SELECT id FROM {Schedule._meta.db_table} WHERE next_at <= %s ORDER BY next_at LIMIT %s"
BATCH_SIZE = 500
"""Schedules that are in memory while their next occurrences are computed anew."""
MAX_OCCURRENCES = 100
"""Schedules in one transaction: at nine o'clock many are due at once."""
_missing: set[str] = set()
"""Missing keys that the log has reported."""
LATE = timedelta(seconds=5)
"""After this delay the sweep fires an occurrence instead of a schedule runner."""
_realigned: dict[str, recurrence.RulesVersion] = {}
"""Zones whose schedules this process has realigned, and by which rules."""
POLL_S = 1.0
"""Interval of queries with nothing due, which find changes made by other hosts."""
PEEK_INTERVAL_S = 0.2
"""Interval of checks for configuration changes on this host, which cost very little."""
REST_S = 0.01
"""Shortest pause when another process holds what is due."""
RETRY_S = 1.0


class Lost(Exception):
    """A locked schedule was changed by another transaction: discard everything of this round."""


def next_due_at() -> datetime | None:
    """Return when the next schedule is due; None if there is none."""
    earliest: datetime | None = Schedule.objects.aggregate(at=Min("next_at"))["at"]
    return earliest


def take(now: datetime, most: int) -> list[Schedule]:
    """Lock due schedules until the transaction ends; return them, longest overdue first.

    Schedules that another process has locked are skipped.
    """
    rows = raw.read(_DUE + dialect.skip_locked, [raw.text(now), most])
    keys = [key for (key,) in rows]
    schedules_by_id = Schedule.objects.select_related("channel", "producer", "body").in_bulk(keys)
    return [schedules_by_id[key] for key in keys if key in schedules_by_id]


def is_undelivered(schedule: Schedule) -> bool:
    """Whether its last message still waits for the fan-out or for one of its consumers."""
    message_id = schedule.last_message_id
    if message_id is None:
        return False
    if Message.objects.filter(id=message_id, state=Message.State.ACCEPTED).exists():
        return True
    return Delivery.objects.filter(message_id=message_id, state__in=OPEN).exists()


def move(
    schedule: Schedule,
    lines: Sequence[dict[str, Any]],
    *,
    next_at: datetime | None,
    message_id: int | None,
    skipped: int,
) -> None:
    """Store a round's result in the row, if its settings still have the version that was used.

    Raises Lost.
    """
    fired = 0 if message_id is None else 1
    if schedule.limit is not None and schedule.fired_count + fired >= schedule.limit:
        next_at = None
    same = Schedule.objects.filter(
        id=schedule.id, version=schedule.version, next_at=schedule.next_at
    )
    moved = same.update(
        next_at=next_at,
        state=Schedule.State.ACTIVE if next_at else Schedule.State.ENDED,
        recent=recurrence.kept(schedule.recent, *lines),
        fired_count=F("fired_count") + fired,
        skipped_count=F("skipped_count") + skipped,
        last_message_id=schedule.last_message_id if message_id is None else message_id,
    )
    if not moved:
        raise Lost(f"schedule {schedule.id}")


def note_run(schedule: Schedule, line: dict[str, Any], message_id: int) -> None:
    """Store the result of a manual run, which does not affect the next occurrence or the limit."""
    Schedule.objects.filter(id=schedule.id).update(
        recent=recurrence.kept(schedule.recent, line), last_message_id=message_id
    )


class _Rejected(Exception):
    """Why an occurrence has no message, as a sentence."""


@dataclass(slots=True)
class _Round:
    """What to do now for one schedule."""

    schedule: Schedule
    turn: Turn
    channel: ChannelConfig | None = None
    publication: Publication | None = None
    result: str = ""
    detail: str = ""
    message_id: int | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def skipped(self) -> int:
        """Number of occurrences that have passed without a message."""
        return self.turn.missed + (self.turn.occurrence is not None and self.message_id is None)


def fire_due(*, due_before: datetime | None = None, most: int = MAX_OCCURRENCES) -> int:
    """Fire what is due now, or by ``due_before``, in one transaction; return how many schedules.

    Raises database errors; then nothing was stored.
    """
    try:
        rounds = transactions.run(lambda: _fire(due_before, most), on_collision=reseed_ids)
    except Lost:
        # A schedule was paused or changed before it was locked; due ones are found again.
        logger.warning("due schedules changed while they were locked; retrying", exc_info=True)
        return 0
    if rounds:
        failpoints.reach("after_fire")
        _count(rounds)
    return len(rounds)


def fire_overdue() -> int:
    """Fire occurrences so late that no schedule runner handles them; checks without locks."""
    limit, next_at = clock.now() - LATE, next_due_at()
    return fire_due(due_before=limit) if next_at is not None and next_at <= limit else 0


def realign() -> Iterator[int]:
    """Move next occurrences that the rules of their time zones no longer have.

    Those rules change with a release of the zones: after a start, or while the process runs. Yields
    how many schedules moved, for each zone with other rules than at the last call.
    """
    active = Schedule.objects.filter(next_at__isnull=False, every_ms=None)
    for name in active.exclude(timezone="UTC").values_list("timezone", flat=True).distinct():
        version = recurrence.zone_version(name)
        if name in _realigned and _realigned[name] == version:
            continue
        count, after = 0, 0
        while page := list(active.filter(timezone=name, id__gt=after).order_by("id")[:BATCH_SIZE]):
            count, after = count + sum(map(_realign, page)), page[-1].id
        _realigned[name] = version
        yield count


def run_now(order: Order) -> dict[str, Any]:
    """Publish a schedule's message once more, in any state; return the publish response.

    Raises NotFound, PreconditionFailed, KeyUnavailable, and Conflict if the channel rejects it.
    """
    return transactions.run(lambda: _run_now(order), on_collision=reseed_ids)


class ScheduleRunner(threading.Thread):
    """Runs until told to stop; errors are logged, and the work is tried again."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        """``wait`` sleeps for some seconds; it returns True, at once, when the process stops."""
        super().__init__(name="schedule-runner", daemon=True)
        self._wait = wait
        self._ended = threading.Event()

    def stop(self) -> None:
        """Stop, and wait for the current write."""
        self._ended.set()
        self.join(5.0)

    def run(self) -> None:
        """Fire and sleep until the next occurrence, in a loop."""
        while not (self._ended.is_set() or self._wait(0.0)):
            try:
                mark = change_marker.mark()
                self._sleep_until(self.turn(), mark)
            except DatabaseFailure as error:
                logger.warning("database unavailable, schedules wait: %s", error)
                close_old_connections()
                self._pause(RETRY_S)
            except Exception:
                # The sweep is the fallback; no error may end this thread.
                logger.exception("publishing due schedules failed")
                self._pause(RETRY_S)
        connection.close()

    def turn(self) -> datetime | None:
        """Fire all that is due; return when the next occurrence is."""
        while (next_at := next_due_at()) is not None and next_at <= clock.now():
            if self._ended.is_set() or not fire_due():
                break  # another process handles it
        return next_at

    def _sleep_until(self, next_at: datetime | None, mark: tuple[int, int]) -> None:
        began = time.monotonic()
        while not self._ended.is_set() and change_marker.mark() == mark:
            remaining_s = began + POLL_S - time.monotonic()
            if next_at is not None:
                remaining_s = min(remaining_s, (next_at - clock.now()).total_seconds())
            if remaining_s <= 0:
                break
            if self._wait(min(remaining_s, PEEK_INTERVAL_S)):
                return
        if next_at is not None and next_at <= clock.now() and time.monotonic() - began < REST_S:
            self._pause(REST_S)

    def _pause(self, seconds: float) -> None:
        self._wait(seconds)


def _fire(due_before: datetime | None, most: int) -> list[_Round]:
    now = clock.now()
    rounds = list(
        filter(None, (_judge(schedule, now) for schedule in take(due_before or now, most)))
    )
    groups: dict[tuple[int, int | None], list[_Round]] = {}
    for plan in rounds:
        if plan.channel is not None and plan.publication is not None:
            groups.setdefault((plan.channel.id, plan.schedule.producer_id), []).append(plan)
    for (_, producer_id), group in groups.items():
        _store(group, producer_id)
    for plan in rounds:
        _write_down(plan, now)
    if rounds:
        failpoints.reach("in_fire")
    return rounds


def _judge(schedule: Schedule, now: datetime) -> _Round | None:
    """Decide about a schedule's occurrence; None if this process lacks its body's key."""
    assert schedule.next_at is not None
    try:
        at = schedule.timetable.nearest(schedule.next_at)
        if at != schedule.next_at:
            return _Round(schedule, Turn(None, 0, at))  # the zone's rules have changed
        turn = recurrence.turn(schedule.next_at, now, schedule.misfire, schedule.timetable.after)
    except ValueError as error:
        # Its time zone no longer exists in a new release of the zones: end it with the reason.
        turn = Turn(schedule.next_at, 0, None)
        return _Round(schedule, turn, result=recurrence.REFUSED, detail=str(error))
    plan = _Round(schedule, turn)
    if turn.occurrence is None:
        return plan
    if schedule.overlap == SKIP_IF_UNDELIVERED and is_undelivered(schedule):
        plan.result, plan.detail = (
            recurrence.OVERLAPPED,
            "The previous message is not delivered yet.",
        )
        return plan
    key = recurrence.key(schedule.name, turn.occurrence)
    try:
        plan.channel, plan.publication = _publication(schedule, key, now)
    except KeyMissing as error:
        if error.key_id not in _missing:
            _missing.add(error.key_id)
            logger.error(registration.MISSING, error.key_id)
        if any(error.key_id in other.keys for other in registration.holders()):
            return None
        # Otherwise it would come before all others for ever.
        plan.result, plan.detail = recurrence.REFUSED, str(error)
    except _Rejected as refused:
        plan.result, plan.detail = recurrence.REFUSED, str(refused)
    return plan


def _publication(schedule: Schedule, key: str, now: datetime) -> tuple[ChannelConfig, Publication]:
    channel, producer = config_cache.channel(schedule.channel.slug), schedule.producer
    if channel is None:
        raise _Rejected("Its channel was deleted.")
    if producer is not None and producer.disabled:
        raise _Rejected("Its producer is disabled.")
    try:
        return channel, recurring.message(schedule, channel, producer, key, now)
    except KeyMissing:
        raise
    except (BrokerError, Unreadable) as refused:
        raise _Rejected(str(refused)) from None


def _store(plans: Sequence[_Round], producer_id: int | None) -> None:
    """Store the messages of one producer on one channel, as many as the quotas permit.

    Each belongs to its own schedule, so each is rejected individually.
    """
    channel = plans[0].channel
    assert channel is not None
    taken: list[tuple[_Round, Publication, Reservation | None]] = []
    for plan in plans:
        assert plan.publication is not None
        try:
            held = limits.take(channel, producer_id, [plan.publication])
        except (OverQuota, StorageFull) as refused:
            plan.result, plan.detail = recurrence.REFUSED, refused.detail
        else:
            taken.append((plan, plan.publication, held))
    if not taken:
        return
    publications = [publication for _, publication, _ in taken]
    try:
        results = accept.accept(channel, producer_id, publications, within_quota=False)
    except BaseException:
        for _, publication, held in taken:
            limits.give_back(held, [publication])
        raise
    for (plan, publication, held), accepted in zip(taken, results, strict=True):
        if accepted.duplicate or accepted.conflict:
            limits.give_back(held, [publication])
        _note(plan, accepted)


def _note(plan: _Round, accepted: Accepted) -> None:
    if accepted.conflict:
        plan.result, plan.detail = recurrence.REFUSED, publication.CONFLICT
        return
    plan.result, plan.message_id = recurrence.FIRED, accepted.message_id


def _write_down(plan: _Round, now: datetime) -> None:
    schedule, turn = plan.schedule, plan.turn
    if turn.missed:
        plan.lines.append(
            recurrence.line(
                recurrence.MISSED, now, occurrence_at=schedule.next_at, count=turn.missed
            )
        )
    if turn.occurrence is not None:
        message = plan.message_id and ids.to_public(ids.MESSAGE, plan.message_id)
        plan.lines.append(
            recurrence.line(
                plan.result,
                now,
                occurrence_at=turn.occurrence,
                message=message or None,
                detail=plan.detail,
            )
        )
    move(
        schedule,
        plan.lines,
        next_at=turn.next_at,
        message_id=plan.message_id,
        skipped=plan.skipped,
    )


def _count(rounds: Sequence[_Round]) -> None:
    for plan in rounds:
        if plan.turn.missed:
            metrics.OCCURRENCES.labels(recurrence.MISSED).inc(plan.turn.missed)
        if plan.result:
            metrics.OCCURRENCES.labels(plan.result).inc()
        if plan.message_id is not None and plan.turn.occurrence is not None:
            late = clock.now() - plan.turn.occurrence
            metrics.OCCURRENCE_LATENESS.observe(late.total_seconds())


def _realign(schedule: Schedule) -> bool:
    assert schedule.next_at is not None
    try:
        next_at = schedule.timetable.nearest(schedule.next_at)
    except ValueError:
        return False  # the zone is gone: its next occurrence ends the schedule with the reason
    if next_at == schedule.next_at:
        return False
    with suppress(Lost):  # it fired or was changed at the same moment, by the new rules
        move(schedule, [], next_at=next_at, message_id=None, skipped=0)
        logger.warning(
            "schedule %s: new rules of %s move its next occurrence from %s to %s",
            *(schedule.name, schedule.timezone, schedule.next_at, next_at),
        )
        return True
    return False


def _run_now(order: Order) -> dict[str, Any]:
    schedule, now = schedules.find(order), clock.now()
    try:
        channel, message = _publication(schedule, recurrence.run_key(order.name, new_id()), now)
    except _Rejected as refused:
        raise Conflict("schedule_refused", str(refused)) from None
    (accepted,) = accept.accept(channel, schedule.producer_id, [message])
    shown = publication.show(channel, message, accepted)
    line = recurrence.line(recurrence.RUN, now, message=shown["id"], detail=order.principal.actor)
    note_run(schedule, line, accepted.message_id)
    order.record("schedule.run", schedule, None, {"message": shown["id"]})
    metrics.OCCURRENCES.labels(recurrence.RUN).inc()
    return shown
