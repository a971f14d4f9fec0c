"""Claim due deliveries for a pull consumer, or long-poll while there are none.

A waiting request is an entry in a queue (long_polling.py) and holds no thread where the server can
answer later. Requests of several workers at the same time share one claim and one read of bodies;
workers of one consumer share its ordering keys.
"""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from django.db import DEFAULT_DB_ALIAS, connections

from channels_app import failpoints
from channels_app.database import clock
from channels_app.database.transactions import GroupCommit
from channels_app.ingest.concurrency import ConcurrencyLimit
from channels_app.registry import data_encryption
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery import metrics
from delivery.core import leases
from delivery.core.leases import Lease
from delivery.core.lifecycle import ClaimAllowance, ClaimedDelivery, DirectClaim, Reason
from delivery.core.outcome import Outcome
from delivery.processes import registration
from delivery.processes.wakeups import notify_pumps, wakeup_sender
from delivery.pull import key_affinity, leasing
from delivery.pull.key_affinity import sticky_keys
from delivery.pull.long_polling import WaitingReceiver, Wakeup, long_polls
from delivery.pump.consumer_queue import GUARD_EVERY
from delivery.queue import claim, fanout, lease_rows, release
from delivery.queue.claim import ClaimRequest
from delivery.transport import payloads
from delivery.transport.payloads import Payload, PayloadCache

logger = logging.getLogger(__name__)
MAX_ROWS = 200
"""Most deliveries in a claim shared by several workers; a single worker may ask for more."""
MAX_BYTES = 8 * 1024 * 1024
"""Limit for all bodies in a response of several messages; the others are fetched by their URL."""
NOTE_INTERVAL_S = 10.0
MAX_NOTED = 10_000
"""Workers that this process remembers to have recorded."""
EMPTY_TRIES = 5
"""Claims in a row that may return nothing because all due messages had expired."""
THREADS = 4
"""Threads that serve resumed requests; requests served at the same time share one claim."""

polls = ConcurrencyLimit()
"""Limits waiting requests; unlimited until the web server sets a limit."""
_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="receive")
_turns = itertools.count(1)
_noted: dict[int, float] = {}


class ClaimShare(NamedTuple):
    """The part of a claim that one worker gets."""

    rows: list[ClaimedDelivery]
    payloads: dict[int, Payload]
    """By message id, including those of other workers; large bodies are not loaded."""
    has_expired: bool
    """Whether the claim met expired messages; other due deliveries may remain."""
    is_more: bool = False
    """Whether more deliveries may be due."""


NOTHING = ClaimShare([], {}, has_expired=False)


def take(claim_request: ClaimRequest) -> ClaimShare:
    """Claim due deliveries; threads that claim at the same time share a transaction."""
    return _group_commit.run(claim_request, claim_request.limit)


def take_chosen(
    chosen: list[int], claim_request: ClaimRequest, *, reclaim: bool = False
) -> ClaimShare:
    """Claim the chosen rows; ``reclaim`` includes rows that the worker already holds."""
    taken = claim.claim_chosen(
        chosen, claim_request, now=clock.now(), slot=os.getpid(), reclaim=reclaim
    )
    return _shares([taken.rows], taken, [claim_request])[0]


def share(
    rows: list[ClaimedDelivery], payload_rows: Sequence[tuple[Any, ...]], *, is_more: bool
) -> ClaimShare:
    """Return the share for claimed rows; ``payload_rows`` are their payload rows."""
    ids, cache = [row.message_id for row in rows], PayloadCache()
    cache.add(payload_rows, dict.fromkeys(ids, 1))
    return ClaimShare(rows, cache.load(ids) if rows else {}, has_expired=False, is_more=is_more)


def _take(claim_requests: Sequence[ClaimRequest]) -> Sequence[ClaimShare]:
    taken = claim.claim(claim_requests, now=clock.now(), slot=os.getpid())
    return _shares(claim.shared(taken.rows, claim_requests), taken, claim_requests)


_group_commit = GroupCommit(_take, max_orders=MAX_ROWS, max_size=MAX_ROWS)


class ReceiveRequest(NamedTuple):
    """What a worker asks for."""

    most: int
    lease_ms: int
    worker: str
    settled: bool = False
    """At most once: the deliveries are settled before the response is sent."""
    sticky: bool = False
    """Whether keys stay with a worker, as far as the number of workers allows (S2-66)."""
    resume: bool = False
    """Return first what the worker already holds, because it crashed and restarted (S4-R4)."""


class ReceivedMessage(NamedTuple):
    """One delivery leased to a worker."""

    row: ClaimedDelivery
    payload: Payload
    """Without a body if the response has no room for it."""
    token: str


Deliver: TypeAlias = Callable[[Sequence[ReceivedMessage], Callable[[], object]], bool]
"""Sends the response of a deferred request. Calls its second argument just before sending. Returns
False without calling it if the client has disconnected."""


def receive(consumer: ConsumerConfig, receive_request: ReceiveRequest) -> list[ReceivedMessage]:
    """Return due deliveries in order of priority, leased to the worker.

    Returns none while the consumer is halted. Raises core.encryption.KeyMissing before anything is
    claimed if no lease can be signed.
    """
    return _receive(consumer, receive_request)[0]


def receive_ignoring_outage(
    consumer: ConsumerConfig,
    receive_request: ReceiveRequest,
    wait_s: float,
    *,
    owner: Hashable,
    defer: Callable[[], Deliver] | None = None,
) -> list[ReceivedMessage] | None:
    """Do the same as `receive`, but wait up to ``wait_s`` seconds for a delivery.

    Returns None if too many requests wait already; a single ``owner`` cannot use up that limit.
    With ``defer``, which is called first, another thread answers a request that has to wait, and
    this returns an empty list. Without it the calling thread waits.
    """
    if wait_s <= 0:
        return receive(consumer, receive_request)
    deadline = time.monotonic() + wait_s
    long_polls.enter(consumer.id)
    is_waiting, is_more = False, False
    try:
        messages, is_more = _receive(consumer, receive_request)
        is_waiting = not messages and polls.take(owner, waits=False)
    finally:
        if not is_waiting:
            long_polls.leave(consumer.id, is_more=is_more)
    if messages:
        return messages
    if not is_waiting:
        metrics.POLLS_REFUSED.inc()
        return None
    receive_request = receive_request._replace(resume=False)
    channel_id = consumer.channel_id if _takes_new(consumer, receive_request) else None
    if defer is None:
        return _wait(consumer.id, deadline, channel_id, receive_request, owner)
    _Deferred(consumer.id, deadline, channel_id, receive_request, owner, defer()).wait()
    return []


def take_back(consumer_id: int, worker: str, messages: Sequence[ReceivedMessage]) -> None:
    """Undo the claim of messages that the worker does not get, and wake the next receiver.

    No attempt is counted.
    """
    if not messages:
        return
    now = clock.now()
    release.give_back(
        [message.row for message in messages],
        owner=leases.owner_of(consumer_id, worker),
        due_at=now,
        now=now,
        slot=os.getpid(),
        reason=Reason.INTERRUPTED,
    )
    long_polls.wake([consumer_id])


def _shares(
    shares: list[list[ClaimedDelivery]], taken: claim.Claim, claim_requests: Sequence[ClaimRequest]
) -> list[ClaimShare]:
    metrics.SWEEP_ROWS.labels("lease").inc(taken.rescued_count)
    payloads = PayloadCache().load([row.message_id for row in taken.rows]) if taken.rows else {}
    return [
        ClaimShare(
            rows,
            payloads,
            has_expired=taken.expired_count > 0,
            is_more=claim_request.consumer_id not in taken.drained,
        )
        for rows, claim_request in zip(shares, claim_requests, strict=True)
    ]


def _receive(
    consumer: ConsumerConfig, receive_request: ReceiveRequest, wakeup: Wakeup | None = None
) -> tuple[list[ReceivedMessage], bool]:
    """Receive new messages of ``wakeup`` first; return also whether more may be due."""
    if consumer.halted or consumer.mode != "pull":
        return [], False
    data_encryption.signing_key(leasing.PURPOSE)
    owner = leases.owner_of(consumer.id, receive_request.worker)
    share = _new(consumer, receive_request, owner, wakeup) if wakeup else NOTHING
    if not share.rows:
        share = (_resumed if receive_request.resume else _claimed)(consumer, receive_request, owner)
    _note(owner, consumer.id, receive_request.worker)
    rows = share.rows
    if not rows:
        return [], False
    contents = _contents(share)
    rows = _opened(rows, contents, owner)
    held = {row.id: _lease(row, receive_request.worker) for row in rows}
    broken = [row for row in rows if contents[row.message_id].error]
    for row in broken:
        payload = contents[row.message_id]
        leasing.end([held[row.id]], payload.outcome, error=payload.error)
    whole = [row for row in rows if row not in broken]
    if receive_request.settled:
        leasing.end([held[row.id] for row in whole], Outcome.DELIVERED)
    failpoints.reach("before_receive_response")
    metrics.RECEIVED.inc(len(whole))
    messages = [
        ReceivedMessage(row, contents[row.message_id], leasing.token(held[row.id])) for row in whole
    ]
    return messages, share.is_more


def _new(
    consumer: ConsumerConfig, receive_request: ReceiveRequest, owner: int, wakeup: Wakeup
) -> ClaimShare:
    """Fan out and claim new messages in one transaction; notify other receivers of the rest."""
    claimer = DirectClaim(
        owner,
        clock.now(),
        lambda counts: {
            key: ClaimAllowance(receive_request.most, receive_request.lease_ms)
            for key in counts
            if key == consumer.id
        },
    )
    result = fanout.fan_out_for_receiver(
        wakeup.message_ids, os.getpid(), claimer, payloads.select_payloads
    )
    if result.message_count < len(wakeup.message_ids):
        wakeup_sender.accepted(*wakeup)
    if other_consumers := result.due.keys() - {consumer.id}:
        notify_pumps(other_consumers)
    due = result.due.get(consumer.id, {}).values()
    return share(result.claimed, result.payload_rows, is_more=any(at <= claimer.now for at in due))


def _resumed(consumer: ConsumerConfig, receive_request: ReceiveRequest, owner: int) -> ClaimShare:
    """Claim first what the worker holds, which voids the leases of its crashed process."""
    held_ids = lease_rows.held(consumer.id, owner, receive_request.most, clock.now())
    claim_request = ClaimRequest(consumer.id, receive_request.most, receive_request.lease_ms, owner)
    held = take_chosen(held_ids, claim_request, reclaim=True)
    if len(held.rows) == receive_request.most:
        return held
    more = _claimed(
        consumer, receive_request._replace(most=receive_request.most - len(held.rows)), owner
    )
    return more._replace(rows=held.rows + more.rows, payloads=held.payloads | more.payloads)


def _claimed(consumer: ConsumerConfig, receive_request: ReceiveRequest, owner: int) -> ClaimShare:
    """Claim due deliveries; if these are too few, fan out accepted messages and claim again.

    A receiver that asks after the response to a publish therefore finds the message.
    """
    share = _due(consumer, receive_request, owner)
    if len(share.rows) == receive_request.most:
        return share
    for result in fanout.fan_out_channel(consumer.channel_id, os.getpid()):
        if result.due:
            notify_pumps(result.due)
    # Claim even if nothing was waiting: a pump may have fanned it out since the first claim.
    more = _due(
        consumer, receive_request._replace(most=receive_request.most - len(share.rows)), owner
    )
    return more._replace(rows=share.rows + more.rows, payloads=share.payloads | more.payloads)


def _due(consumer: ConsumerConfig, receive_request: ReceiveRequest, owner: int) -> ClaimShare:
    for _ in range(EMPTY_TRIES):
        claim_request = ClaimRequest(
            consumer.id,
            receive_request.most,
            receive_request.lease_ms,
            owner,
            oldest_first=next(_turns) % GUARD_EVERY == 0,
            spare=receive_request.most,
        )
        share = (
            _own(claim_request, receive_request, owner)
            if receive_request.sticky
            else take(claim_request)
        )
        if share.rows or not share.has_expired:
            break
    return share


def _own(claim_request: ClaimRequest, receive_request: ReceiveRequest, owner: int) -> ClaimShare:
    """Claim deliveries without a key or with the worker's keys; makes it a member."""
    workers = sticky_keys.join(
        owner, claim_request.consumer_id, receive_request.worker, receive_request.lease_ms
    )
    chosen = key_affinity.choose(
        claim_request.consumer_id,
        claim_request.limit,
        owner,
        workers,
        clock.now(),
        oldest_first=claim_request.oldest_first,
    )
    return take_chosen(chosen, claim_request)


def _note(owner: int, consumer_id: int, worker: str) -> None:
    ticks = time.monotonic()
    if ticks - _noted.get(owner, float("-inf")) < NOTE_INTERVAL_S:
        return
    if len(_noted) > MAX_NOTED:
        _noted.clear()
    _noted[owner] = ticks
    lease_rows.note_worker(owner, consumer_id, worker, clock.now())


def _contents(share: ClaimShare) -> dict[int, Payload]:
    """Return the payload of each message, with large bodies while there is room."""
    contents = {
        row.message_id: share.payloads.get(row.message_id, payloads.MISSING) for row in share.rows
    }
    room = MAX_BYTES - sum(payload.size for payload in contents.values() if not payload.is_left)
    for message_id, payload in contents.items():
        if payload.is_left and (payload.size <= room or len(contents) == 1):
            room -= payload.size
            contents[message_id] = payloads.load([message_id]).get(message_id, payloads.MISSING)
    return contents


def _opened(
    rows: list[ClaimedDelivery], contents: dict[int, Payload], owner: int
) -> list[ClaimedDelivery]:
    """Return deliveries whose encryption key this process has, and give the others back."""
    lacking: dict[str, list[ClaimedDelivery]] = {}
    for row in rows:
        lacking.setdefault(contents[row.message_id].missing_key, []).append(row)
    whole, now = lacking.pop("", []), clock.now()
    for key_id, group in lacking.items():
        due_at = now + timedelta(seconds=registration.change_marker.miss(key_id))
        metrics.UNOPENED.inc(
            release.give_back(group, owner=owner, due_at=due_at, now=now, slot=os.getpid())
        )
    return whole


def _lease(row: ClaimedDelivery, worker: str) -> Lease:
    return Lease(
        delivery_id=row.id,
        consumer_id=row.consumer_id,
        attempt=row.attempt,
        failure_count=row.failure_count,
        interruption_count=row.interruption_count,
        accepted_at=row.accepted_at,
        taken_at=clock.now(),
        worker=worker,
        ordering_key=row.ordering_key,
    )


def _takes_new(consumer: ConsumerConfig, receive_request: ReceiveRequest) -> bool:
    """Whether a receiver can fan out new messages itself: no other consumer gets them."""
    if receive_request.sticky or consumer.ordering or consumer.halted:
        return False
    channel = config_cache.channel(consumer.channel_slug, refresh=False)
    return channel is not None and len(channel.consumers) == 1


def _wait(
    consumer_id: int,
    deadline: float,
    channel_id: int | None,
    receive_request: ReceiveRequest,
    owner: Hashable,
) -> list[ReceivedMessage]:
    """Wait in the calling thread."""
    resumed = threading.Event()
    receiver = WaitingReceiver(consumer_id, deadline, resumed.set, channel_id)
    try:
        messages = None if long_polls.wait(receiver) else _scan(receiver, receive_request)
        while messages is None:
            resumed.wait()
            resumed.clear()
            messages = _scan(receiver, receive_request)
    finally:
        polls.give_back(owner)
    return messages


def _scan(
    receiver: WaitingReceiver, receive_request: ReceiveRequest
) -> list[ReceivedMessage] | None:
    """Return the deliveries for the response, possibly none; None if the request waits again."""
    is_waiting, is_more = False, False
    messages: list[ReceivedMessage] = []
    try:
        while not long_polls.is_over_for(receiver):
            consumer = config_cache.consumers().get(receiver.consumer_id)
            if consumer is None or consumer.mode != "pull":
                break
            wakeup, receiver.wakeup = receiver.wakeup, None
            messages, is_more = _receive(consumer, receive_request, wakeup)
            if messages:
                if receiver.cause is not None:
                    metrics.RESUMED.labels(receiver.cause.value).inc()
                break
            if receive_request.sticky:
                long_polls.pass_on(receiver)  # the due deliveries may have keys of another worker
            if not is_more and long_polls.wait(receiver):
                is_waiting = True
                return None
    finally:
        if not is_waiting:
            long_polls.leave(receiver.consumer_id, is_more=is_more)
            if receiver.wakeup is not None:
                wakeup_sender.accepted(*receiver.wakeup)
    return messages


class _Deferred:
    """A request that waits without a thread."""

    __slots__ = ("_deliver", "_owner", "_receiver", "_request")

    def __init__(
        self,
        consumer_id: int,
        deadline: float,
        channel_id: int | None,
        receive_request: ReceiveRequest,
        owner: Hashable,
        deliver: Deliver,
    ) -> None:
        self._receiver = WaitingReceiver(consumer_id, deadline, self._resume, channel_id)
        self._request, self._owner, self._deliver = receive_request, owner, deliver

    def wait(self) -> None:
        """Wait until resumed, or answer at once if a delivery arrived meanwhile."""
        if not long_polls.wait(self._receiver):
            self._scan()

    def _resume(self) -> None:
        _threads.submit(self._scan)

    def _scan(self) -> None:
        messages: list[ReceivedMessage] = []
        try:
            # At-most-once deliveries are settled only once the client is known to be connected.
            received = _scan(self._receiver, self._request._replace(settled=False))
            if received is None:
                return
            messages = received
        except Exception:
            # The worker gets an empty response, and the error when it asks again.
            logger.exception("a waiting receive call cannot be answered")
        finally:
            _keep_connection_usable()
        try:
            if not self._deliver(messages, lambda: self._settle(messages)):
                take_back(self._receiver.consumer_id, self._request.worker, messages)
        except Exception:
            logger.exception("claimed messages cannot be given to a waiting receive call")
        finally:
            polls.give_back(self._owner)

    def _settle(self, messages: Sequence[ReceivedMessage]) -> None:
        if self._request.settled and messages:
            leasing.end(
                [_lease(message.row, self._request.worker) for message in messages],
                Outcome.DELIVERED,
            )


def _keep_connection_usable() -> None:
    """Close a broken or old connection, as Django does at the end of a request."""
    connections[DEFAULT_DB_ALIAS].close_if_unusable_or_obsolete()
