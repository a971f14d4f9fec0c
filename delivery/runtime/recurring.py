"""Accept the messages of due schedules, each occurrence once (S4-06)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from channels_app import clock, failpoints, quotas, transactions
from channels_app.api import publishing, recurring
from channels_app.api.problems import ApiProblem
from channels_app.config_cache import ChannelConfig, config_cache
from channels_app.errors import Conflict, OverQuota, StorageFull
from channels_app.models import Schedule, new_id
from channels_app.quotas import Held
from channels_app.rules import ids, misfires, occurrence_log
from channels_app.rules.encryption import KeyMissing, Unreadable
from channels_app.rules.misfires import Turn
from channels_app.rules.recurrence import SKIP_IF_UNDELIVERED
from channels_app.steps import accept, register_schedule
from channels_app.steps.accept import Accepted, Publication
from channels_app.steps.register_schedule import Order
from delivery import metrics
from delivery.runtime import registration
from delivery.steps import occurrences

logger = logging.getLogger(__name__)

MAX_OCCURRENCES = 100
"""Schedules in one transaction: at nine o'clock many are due at once."""
_missing: set[str] = set()
"""Missing keys that the log has reported."""
LATE = timedelta(seconds=5)
"""After this delay the sweep fires an occurrence instead of a schedule runner."""


class _Rejected(Exception):
    """Why an occurrence has no message, as a sentence."""


@dataclass(slots=True)
class _Round:
    """What to do now for one schedule."""

    schedule: Schedule
    turn: Turn
    view: ChannelConfig | None = None
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
        rounds = transactions.run(lambda: _fire(due_before, most), on_collision=new_id.reseed)
    except occurrences.Lost:
        # A schedule was paused or changed before it was locked; due ones are found again.
        logger.warning("due schedules changed while they were locked; retrying", exc_info=True)
        return 0
    if rounds:
        failpoints.reach("after_fire")
        _count(rounds)
    return len(rounds)


def fire_overdue() -> int:
    """Fire occurrences so late that no schedule runner handles them; checks without locks."""
    limit, next_at = clock.now() - LATE, occurrences.next_at()
    return fire_due(due_before=limit) if next_at is not None and next_at <= limit else 0


def run_now(order: Order) -> dict[str, Any]:
    """Publish a schedule's message once more, in any state; return the publish response.

    Raises NotFound, PreconditionFailed, KeyUnavailable, and Conflict if the channel rejects it.
    """
    return transactions.run(lambda: _run_now(order), on_collision=new_id.reseed)


def _fire(due_before: datetime | None, most: int) -> list[_Round]:
    now = clock.now()
    rounds = list(
        filter(None, (_judge(it, now) for it in occurrences.take(due_before or now, most)))
    )
    groups: dict[tuple[int, int | None], list[_Round]] = {}
    for one in rounds:
        if one.view is not None and one.publication is not None:
            groups.setdefault((one.view.id, one.schedule.producer_id), []).append(one)
    for (_, producer_id), some in groups.items():
        _store(some, producer_id)
    for one in rounds:
        _write_down(one, now)
    if rounds:
        failpoints.reach("in_fire")
    return rounds


def _store(some: Sequence[_Round], producer_id: int | None) -> None:
    """Store the messages of one producer on one channel, as many as the quotas permit.

    Each belongs to its own schedule, so each is rejected individually.
    """
    view = some[0].view
    assert view is not None
    taken: list[tuple[_Round, Publication, Held | None]] = []
    for one in some:
        assert one.publication is not None
        try:
            held = quotas.take(view, producer_id, [one.publication])
        except (OverQuota, StorageFull) as refused:
            one.result, one.detail = occurrence_log.REFUSED, refused.detail
        else:
            taken.append((one, one.publication, held))
    if not taken:
        return
    publications = [publication for _, publication, _ in taken]
    try:
        results = accept.accept(view, producer_id, publications, within_quota=False)
    except BaseException:
        for _, publication, held in taken:
            quotas.give_back(held, [publication])
        raise
    for (one, publication, held), accepted in zip(taken, results, strict=True):
        if accepted.duplicate or accepted.conflict:
            quotas.give_back(held, [publication])
        _note(one, accepted)


def _judge(schedule: Schedule, now: datetime) -> _Round | None:
    """Decide about a schedule's occurrence; None if this process lacks its body's key."""
    assert schedule.next_at is not None
    try:
        turn = misfires.turn(schedule.next_at, now, schedule.misfire, schedule.timetable.after)
    except ValueError as error:
        # Its time zone no longer exists in a new release of the zones: end it with the reason.
        turn = Turn(schedule.next_at, 0, None)
        return _Round(schedule, turn, result=occurrence_log.REFUSED, detail=str(error))
    one = _Round(schedule, turn)
    if turn.occurrence is None:
        return one
    if schedule.overlap == SKIP_IF_UNDELIVERED and occurrences.is_undelivered(schedule):
        one.result, one.detail = (
            occurrence_log.OVERLAPPED,
            "The previous message is not delivered yet.",
        )
        return one
    key = occurrence_log.key(schedule.name, turn.occurrence)
    try:
        one.view, one.publication = _publication(schedule, key, now)
    except KeyMissing as error:
        if error.key_id not in _missing:
            _missing.add(error.key_id)
            logger.error(registration.MISSING, error.key_id)
        if any(error.key_id in other.keys for other in registration.holders()):
            return None
        # Otherwise it would come before all others for ever.
        one.result, one.detail = occurrence_log.REFUSED, str(error)
    except _Rejected as refused:
        one.result, one.detail = occurrence_log.REFUSED, str(refused)
    return one


def _publication(schedule: Schedule, key: str, now: datetime) -> tuple[ChannelConfig, Publication]:
    view, producer = config_cache.channel(schedule.channel.slug), schedule.producer
    if view is None:
        raise _Rejected("Its channel was deleted.")
    if producer is not None and producer.disabled:
        raise _Rejected("Its producer is disabled.")
    try:
        return view, recurring.message(schedule, view, producer, key, now)
    except KeyMissing:
        raise
    except (ApiProblem, Unreadable) as refused:
        raise _Rejected(str(refused)) from None


def _note(one: _Round, accepted: Accepted) -> None:
    if accepted.conflict:
        one.result, one.detail = occurrence_log.REFUSED, publishing.CONFLICT
        return
    one.result, one.message_id = occurrence_log.FIRED, accepted.message_id


def _write_down(one: _Round, now: datetime) -> None:
    schedule, turn = one.schedule, one.turn
    if turn.missed:
        one.lines.append(
            occurrence_log.line(
                occurrence_log.MISSED, now, occurrence_at=schedule.next_at, count=turn.missed
            )
        )
    if turn.occurrence is not None:
        message = one.message_id and ids.to_public(ids.MESSAGE, one.message_id)
        one.lines.append(
            occurrence_log.line(
                one.result,
                now,
                occurrence_at=turn.occurrence,
                message=message or None,
                detail=one.detail,
            )
        )
    occurrences.move(
        schedule,
        one.lines,
        next_at=turn.next_at,
        message_id=one.message_id,
        skipped=one.skipped,
    )


def _run_now(order: Order) -> dict[str, Any]:
    schedule, now = register_schedule.find(order), clock.now()
    try:
        view, publication = _publication(
            schedule, occurrence_log.run_key(order.name, new_id()), now
        )
    except _Rejected as refused:
        raise Conflict("schedule_refused", str(refused)) from None
    (accepted,) = accept.accept(view, schedule.producer_id, [publication])
    shown = publishing.show(view, publication, accepted)
    line = occurrence_log.line(occurrence_log.RUN, now, message=shown["id"], detail=order.actor)
    occurrences.note_run(schedule, line, accepted.message_id)
    order.record("schedule.run", schedule, None, {"message": shown["id"]})
    metrics.OCCURRENCES.labels(occurrence_log.RUN).inc()
    return shown


def _count(rounds: Sequence[_Round]) -> None:
    for one in rounds:
        if one.turn.missed:
            metrics.OCCURRENCES.labels(occurrence_log.MISSED).inc(one.turn.missed)
        if one.result:
            metrics.OCCURRENCES.labels(one.result).inc()
        if one.message_id is not None and one.turn.occurrence is not None:
            late = clock.now() - one.turn.occurrence
            metrics.OCCURRENCE_LATENESS.observe(max(0.0, late.total_seconds()))
