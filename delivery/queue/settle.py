"""Record finished attempts and move their deliveries, fenced by the attempt number."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from django.db import IntegrityError

from channels_app import failpoints
from channels_app.core.encryption import KeyMissing
from channels_app.database import raw, transactions
from channels_app.database.raw import dialect
from channels_app.models import new_id, reseed_ids
from channels_app.registry import data_encryption
from channels_app.registry.cache import config_cache
from delivery import dead_letters, metrics
from delivery.acks import callbacks
from delivery.core.acks import confirmed
from delivery.core.lifecycle import FINISHED, ClaimedDelivery, DeliveryState, Transition
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Counter, Delivery
from delivery.ordering import key_queue
from delivery.ordering.key_queue import ClosingEntry

Expect: TypeAlias = Callable[[int, datetime], object]
"""Called with a consumer's id and when its next delivery is due."""
TABLE = Delivery._meta.db_table
MAX_ERROR = 300
"""Characters of an error that are stored."""
ATTEMPTS = raw.Insert(
    Attempt,
    numbers=("id", "delivery_id", "number", "total_ms"),
    values=(
        *("started_at", "outcome", "status_code", "error", "answer_headers", "answer_excerpt"),
        *("connect_ms", "first_byte_ms", "remote_address", "worker"),
    ),
)


class Result(NamedTuple):
    """One finished attempt, and the transition of its delivery."""

    claimed: ClaimedDelivery
    transition: Transition
    outcome: Outcome
    started_at: datetime
    worker: str
    """The process that made the attempt."""
    status: int | None = None
    error: str = ""
    answer_headers: str = ""
    excerpt: bytes = b""
    connect_ms: int | None = None
    first_byte_ms: int | None = None
    total_ms: int = 0
    remote_address: str = ""
    provider_id: str = ""
    """The consumer's own id for the delivery, which its callbacks use."""
    seals: bool = False
    """Whether the channel encrypts bodies. If so, the response is encrypted too: it may repeat
    one."""


def _ignore(consumer_id: int, due_at: datetime) -> None:
    """Ignore the due time: nothing waits for it."""


def _stored(result: Result) -> Result:
    """Return the result with the consumer's response as it is stored."""
    # Only a rejection's error comes from the consumer; the broker writes all others.
    rejection = result.error[:MAX_ERROR] if result.outcome is Outcome.REJECTED else ""
    if not (result.seals and (rejection or result.answer_headers or result.excerpt)):
        plain = data_encryption.plain_response(result.excerpt)
        return result if plain is result.excerpt else result._replace(excerpt=plain)
    answer = data_encryption.StoredResponse(rejection, result.answer_headers, result.excerpt)
    claimed = result.claimed
    try:
        sealed = data_encryption.encrypt_response(claimed.id, claimed.attempt, answer)
    except KeyMissing:
        return bare(result)
    return result._replace(
        error="" if rejection else result.error, answer_headers="", excerpt=sealed
    )


class _LostRace(Exception):
    """A newer attempt has taken one of the deliveries."""


def bare(result: Result) -> Result:
    """Return the result without the consumer's response."""
    return result._replace(error="The answer could not be stored.", answer_headers="", excerpt=b"")


def settle(results: Sequence[Result], *, now: datetime, slot: int, expect: Expect = _ignore) -> int:
    """Write ``results`` in one transaction; return how many deliveries this caller still held.

    ``expect`` is called when a result makes the next delivery of an ordering key due.

    If another attempt has taken a delivery, its result changes nothing (S0-37): the lease had
    expired, and the newer attempt decides.
    """
    return len(close(results, now=now, slot=slot, expect=expect))


def close(
    results: Sequence[Result], *, now: datetime, slot: int, expect: Expect = _ignore
) -> Sequence[Result]:
    """Do the same as `settle`, and return the results that were written."""
    if not results:
        return results
    results = [_stored(result) for result in results]
    # Nearly always the caller still holds all deliveries. The fence in each UPDATE and its row
    # count
    # confirm that without reading a row. If a count differs, or an attempt of that number exists, a
    # second try first locks the deliveries that are still held.
    due: dict[int, datetime]
    try:
        ours, due = transactions.run(lambda: _write(results, now, slot))
    except (_LostRace, IntegrityError):
        ours, due = transactions.run(
            lambda: _write(_held(results), now, slot), on_collision=reseed_ids
        )
    for consumer_id, due_at in due.items():
        expect(consumer_id, due_at)
    metrics.count(
        metrics.Ended(
            outcome=result.outcome,
            state=result.transition.state,
            seconds=result.total_ms / 1000,
            latency_s=(now - result.claimed.accepted_at).total_seconds(),
        )
        for result in ours
    )
    metrics.LATE_RESULTS.inc(len(results) - len(ours))
    return ours


def _write(
    results: Sequence[Result], now: datetime, slot: int
) -> tuple[Sequence[Result], dict[int, datetime]]:
    """Return the results, and when the next deliveries of their keys are due. Raises _LostRace."""
    if not results:
        return results, {}
    groups = _alike(results)
    ending = key_queue.ending(_leaving(results))
    moved = raw.execute_all(
        [
            *(_moving(group, now) for group in groups),
            *ATTEMPTS.statements(map(_attempt, results)),
            *Counter.adding(_tally(results), slot),
            *([ending] if ending else ()),
        ]
    )
    if moved[: len(groups)] != [len(group) for group in groups]:
        raise _LostRace
    results = _overruled(results, now, slot)
    dead_letters.note(_dead(results), now)
    due = key_queue.leave(_leaving(results), now, ended=moved[-1] if ending else 0)
    failpoints.reach("in_settle")
    return results, due


def _overruled(results: Sequence[Result], now: datetime, slot: int) -> Sequence[Result]:
    """Apply acknowledgements that arrived before their attempts; they take precedence."""
    words = callbacks.early(result.claimed.id for result in results)
    by_provider = callbacks.correlated(
        (
            callbacks.Named(
                *(result.claimed.consumer_id, result.claimed.id),
                *(result.provider_id, result.claimed.accepted_at),
            )
            for result in results
            if result.provider_id
        ),
        now,
    )
    for delivery_id, ok in by_provider.items():
        # The consumer may have acknowledged a delivery that its provider reported as failed.
        words[delivery_id] = ok or words.get(delivery_id, False)
    if not words:
        return results
    after: list[Result] = []
    moves: list[callbacks.Move] = []
    tally: Tally[tuple[int, str]] = Tally()
    for result in results:
        claimed, move = result.claimed, result.transition
        to = move
        if words.get(claimed.id) is True:
            to = confirmed()
        elif claimed.id in words and move.state is DeliveryState.AWAITING_ACK:
            to = callbacks.refused(claimed.consumer_id, claimed.failure_count, claimed.event_type)
        if to != move:
            moves.append(callbacks.Move(claimed.id, to))
            tally[claimed.consumer_id, move.state.value] -= 1
            tally[claimed.consumer_id, to.state.value] += 1
        after.append(result._replace(transition=to))
    callbacks.move(moves, now)
    Counter.add(tally, slot)
    return after


def _dead(results: Sequence[Result]) -> Iterator[tuple[int, int]]:
    for result in results:
        if result.transition.state is DeliveryState.DEAD:
            yield result.claimed.id, result.claimed.consumer_id


def _leaving(results: Sequence[Result]) -> Iterator[ClosingEntry]:
    """Yield finished deliveries that have a key and an ordered consumer."""
    ordered = config_cache.ordered()
    if not ordered:
        return
    for claimed, move, *_ in results:
        if claimed.ordering_key and claimed.consumer_id in ordered and move.state in FINISHED:
            is_dead = move.state is DeliveryState.DEAD
            yield ClosingEntry(claimed.id, claimed.consumer_id, claimed.ordering_key, is_dead)


def _held(results: Sequence[Result]) -> Sequence[Result]:
    """Lock deliveries by primary key, and return the results whose attempts are still current."""
    ids = raw.listed(result.claimed.id for result in results)
    found = raw.read(
        f"SELECT id, attempt_count FROM {TABLE} WHERE id IN ({ids}) AND state = %s{dialect.locked}",
        [DeliveryState.IN_FLIGHT.value],
    )
    first = {(result.claimed.id, result.claimed.attempt): result for result in reversed(results)}
    return [first[key] for key in found if key in first]


def _tally(results: Sequence[Result]) -> Tally[tuple[int, str]]:
    ends = Tally((result.claimed.consumer_id, result.transition.state) for result in results)
    tally: Tally[tuple[int, str]] = Tally()
    for (consumer_id, state), count in ends.items():
        tally[consumer_id, DeliveryState.IN_FLIGHT.value] -= count
        tally[consumer_id, state.value] += count
    return tally


def _alike(results: Sequence[Result]) -> list[list[Result]]:
    """Group results that end alike: one UPDATE moves all rows of a group."""
    alike: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        move = result.transition
        end = (
            *(move.state, move.reason, move.charged, move.is_local, move.due_in is None),
            *(result.outcome, result.status, result.claimed.attempt),
        )
        alike.setdefault(end, []).append(result)
    return list(alike.values())


def _moving(group: Sequence[Result], now: datetime) -> raw.Statement:
    result, move = group[0], group[0].transition
    waits = move.due_in is not None
    due, instants = _due(group, now) if waits else ("NULL", [])
    counted = "failure_count" if move.charged else "interruption_count"
    is_queued_again = waits and move.state is not DeliveryState.AWAITING_ACK
    counts = move.charged or (is_queued_again and not move.is_local)
    more = f"{counted} = {counted} + 1, " if counts else ""
    sql = (
        f"UPDATE {TABLE} SET state = %s, reason = %s, outcome = %s, status_code = %s, "
        f"due_at = {due}, finished_at = %s, lease_owner = NULL, {more}version = version + 1 "
        f"WHERE id IN ({raw.listed(row.claimed.id for row in group)}) "
        "AND state = %s AND attempt_count = %s"
    )
    return sql, [
        *(move.state.value, move.reason.value, result.outcome.value, result.status),
        *(*instants, None if waits else raw.text(now)),
        *(DeliveryState.IN_FLIGHT.value, result.claimed.attempt),
    ]


def _due(group: Sequence[Result], now: datetime) -> tuple[str, list[Any]]:
    """Build the SQL value of ``due_at``: one for all rows, or one each where jitter differs."""
    waits = {row.claimed.id: timedelta(seconds=row.transition.due_in or 0.0) for row in group}
    if len(set(waits.values())) == 1:
        return "%s", [raw.text(now + waits[group[0].claimed.id])]
    cases = " ".join(f"WHEN {delivery_id} THEN %s" for delivery_id in waits)
    return f"CASE id {cases} END", [raw.text(now + wait) for wait in waits.values()]


def _attempt(result: Result) -> raw.Row:
    claimed = result.claimed
    return (
        (new_id(), claimed.id, claimed.attempt, result.total_ms),
        (
            *(raw.text(result.started_at), result.outcome.value, result.status),
            *(result.error[:MAX_ERROR], result.answer_headers, result.excerpt),
            *(result.connect_ms, result.first_byte_ms, result.remote_address),
            result.worker[:100],
        ),
    )
