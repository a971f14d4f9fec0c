"""Receive over a stream: messages as credits allow, settlements in the other direction.

A stream claims only what it has credits for, and claims again only when the previous messages are
written. So a slow client holds back its own stream, and the broker holds at most one claim for it.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.core.errors import Invalid, Unavailable
from channels_app.registry import authentication
from channels_app.registry.cache import ConsumerConfig
from delivery.core.outcome import Outcome
from delivery.grpc.hookstation_pb2 import (
    Delivery,
    LeaseFailure,
    ReceiveRequest,
    ReceiveResponse,
    Settlement,
    SettlementResult,
    Subscription,
)
from delivery.grpc.threads import Threads
from delivery.pull import calls, receiving
from delivery.pull.receiving import Deliver, ReceivedMessage
from delivery.pull.receiving import ReceiveRequest as Claim
from delivery.serializers.base import RequestSerializer, url
from delivery.serializers.pull import (
    LeaseExtensionOptions,
    LeaseReleaseOptions,
    NegativeAcknowledgementOptions,
)

MAX_CREDITS = 10_000
"""Credits that a client may have left."""
BATCH = 200
"""Messages of one claim, and leases that one transaction settles."""
MAX_LEASES = 1_000
"""Leases of one settlement."""
MAX_QUEUED = 2_000
"""Leases whose settlements wait; above that the client's requests are not read."""
MAX_RESUMED = 1_000
"""Messages that a worker resumes."""
FIRST_BATCH = 20
"""Messages of the first claim, before the size of their bodies is known."""
CLAIM_BYTES = 4 * 1024 * 1024
"""Bodies of one claim, as far as the size of the previous ones tells."""
CHUNK_BYTES = 1024 * 1024
"""Bodies of one response. Clients refuse responses above 4 MiB unless they are told otherwise."""
MAX_INLINE_BYTES = 3 * 1024 * 1024
"""The client fetches a larger body by its URL."""
WAIT_S = 20.0
"""Seconds that a claim waits for messages; then the caller is authenticated again."""
Write = Callable[[bytes], Awaitable[None]]
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OPTIONS = {
    Settlement.ACK: RequestSerializer(),
    Settlement.NACK: NegativeAcknowledgementOptions(),
    Settlement.RELEASE: LeaseReleaseOptions(),
    Settlement.EXTEND: LeaseExtensionOptions(),
}
"""The options of each action: those of the REST API."""


class Chunk(NamedTuple):
    """One response with messages."""

    content: bytes
    messages: Sequence[ReceivedMessage]
    worker: str


class Order(NamedTuple):
    """One settlement, checked."""

    id: int
    action: int
    leases: Sequence[str]
    options: Mapping[str, Any]

    def is_like(self, other: "Order") -> bool:
        """Whether both can be settled together."""
        return (self.action, self.options) == (other.action, other.options)


@dataclass(slots=True)
class Worker:
    """Who receives what. Each claim and each settlement authenticates the caller again."""

    meta: Mapping[str, str]
    subscription: Subscription
    is_back: bool

    def principal(self) -> Principal:
        """Return the caller. Raises what the REST API raises."""
        return authentication.authenticate(self.meta, calls.SCOPES, self.subscription.channel)

    def claim(self, most: int) -> tuple[Principal, ConsumerConfig, Claim]:
        """Return what to claim next. Raises what the REST API raises."""
        principal, at = self.principal(), self.subscription
        consumer = calls.consumer_of(principal, at.channel, at.consumer)
        asked: dict[str, Any] = {
            "worker_id": at.worker_id or None,
            "keys": "sticky" if at.sticky else None,
            "resume": self.is_back,
            "auto_ack": at.auto_ack,
        }
        if at.HasField("lease_s"):
            asked["lease_s"] = at.lease_s
        claim = calls.request_of(principal, calls.RECEIVE.read(asked))
        return principal, consumer, claim._replace(most=most)


class ReceiveStream:
    """One stream of one worker.

    Three coroutines read requests, write messages and settle leases. What may wait for the database
    runs in other threads.
    """

    def __init__(self, meta: Mapping[str, str], write: Write, threads: Threads) -> None:
        self._meta, self._write_raw, self._threads = meta, write, threads
        self._loop = asyncio.get_running_loop()
        self._write_lock = asyncio.Lock()
        self._worker: Worker
        self._credits = 0
        self._batch = FIRST_BATCH
        self._is_claiming = False
        self._is_over = False
        """Whether the client has closed its side."""
        self._is_stopping = False
        self._may_send, self._may_settle = asyncio.Event(), asyncio.Event()
        self._orders: deque[Order] = deque()
        self._queued = 0
        """Leases in ``_orders`` and in the settlement that is being stored."""
        self._has_room = asyncio.Event()
        self._lock = threading.Lock()
        """Guards the attributes below, which threads change."""
        self._chunks: deque[Chunk] = deque()
        self._takes_nothing = False

    async def serve(self, requests: AsyncIterator[bytes]) -> None:
        """Serve until the client closes its side. Raises what refuses the stream."""
        first = ReceiveRequest.FromString(await anext(requests, b""))
        if not first.HasField("subscription"):
            detail = "The first request names the channel and its consumer."
            raise Invalid("invalid_fields", detail, field="subscription")
        at = first.subscription
        self._worker = Worker(self._meta, at, at.resume)
        await self._threads.run(self._worker.claim, 1)
        await self._write(b"")  # an empty response: the stream is open
        self._take(first)
        parts = (self._read(requests), self._send(), self._settle())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._close()

    def stop(self) -> None:
        """Send no more messages, because the broker stops."""
        self._is_stopping = True
        self._give_back()
        self._may_send.set()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        """Take the client's requests, no faster than their settlements are stored."""
        async for content in requests:
            request = ReceiveRequest.FromString(content)
            if request.HasField("subscription"):
                detail = "A stream has one subscription, in its first request."
                raise Invalid("invalid_fields", detail, field="subscription")
            self._take(request)
            while self._queued > MAX_QUEUED:
                self._has_room.clear()
                await self._has_room.wait()
        self._is_over = True
        self._may_send.set()
        self._may_settle.set()

    def _take(self, request: ReceiveRequest) -> None:
        self._credits += request.credits
        if self._credits > MAX_CREDITS:
            detail = f"A client has at most {MAX_CREDITS} credits left."
            raise Invalid("invalid_fields", detail, field="credits")
        for settlement in request.settlements:
            order = order_of(settlement)
            self._orders.append(order)
            self._queued += len(order.leases)
        self._may_send.set()
        self._may_settle.set()

    async def _write(self, response: bytes) -> None:
        async with self._write_lock:
            await self._write_raw(response)

    async def _send(self) -> None:
        """Write messages while there are credits, and say when the broker stops."""
        is_announced = False
        while not self._is_over:
            self._may_send.clear()
            if self._is_stopping and not is_announced:
                await self._write(ReceiveResponse(stopping=True).SerializeToString())
                is_announced = True
            elif chunk := self._next_chunk():
                self._credits -= len(chunk.messages)
                # If the write fails, the client may have the messages: they stay leased, so that
                # no other worker receives what this one may be handling.
                await self._write(chunk.content)
            elif not (self._is_stopping or self._is_claiming) and self._credits > 0:
                self._is_claiming = True
                await self._threads.run(self._claim, min(self._credits, self._most()))
            else:
                await self._may_send.wait()

    def _most(self) -> int:
        """Return the most messages of the next claim. Only the first one resumes."""
        return MAX_RESUMED if self._worker.is_back else self._batch

    def _next_chunk(self) -> Chunk | None:
        with self._lock:
            return self._chunks.popleft() if self._chunks else None

    def _claim(self, most: int) -> None:
        """Claim messages, or wait for them without a thread. Runs in a thread."""
        principal, consumer, claim = self._worker.claim(most)
        is_deferred = False

        def defer() -> Deliver:
            nonlocal is_deferred
            is_deferred = True

            def deliver(messages: Sequence[ReceivedMessage], settle: Callable[[], object]) -> bool:
                try:
                    return self._hand(consumer, claim, messages, settle)
                except BaseException:
                    self._hand(consumer, claim, [], bool)
                    raise

            return deliver

        messages = receiving.receive_ignoring_outage(
            consumer, claim, WAIT_S, owner=principal.owner, defer=defer
        )
        self._worker.is_back = False
        if messages is None:
            raise Unavailable("too_many_polls", calls.NO_PLACE)
        if not (is_deferred or self._hand(consumer, claim, messages, bool)):
            receiving.take_back(consumer.id, claim.worker, messages)

    def _hand(
        self,
        consumer: ConsumerConfig,
        claim: Claim,
        messages: Sequence[ReceivedMessage],
        settle: Callable[[], object],
    ) -> bool:
        """Give claimed messages to ``_send``; False if the stream ends. Runs in a thread."""
        chunks = chunks_of(messages, consumer, claim)
        if messages:
            size = sum(message.payload.size for message in messages) // len(messages)
            self._batch = max(1, min(BATCH, CLAIM_BYTES // max(size, 1)))
        if self._takes_nothing:
            return False
        settle()  # without the lock, because it waits for the database
        with self._lock:
            if self._takes_nothing:
                return claim.settled
            self._chunks += chunks
        self._loop.call_soon_threadsafe(self._note_claimed)
        return True

    def _note_claimed(self) -> None:
        self._is_claiming = False
        self._may_send.set()

    async def _settle(self) -> None:
        """Settle leases as the client asks, in its order, until it has closed its side."""
        while self._orders or not self._is_over:
            self._may_settle.clear()
            if not self._orders:
                await self._may_settle.wait()
                continue
            orders = self._next_orders()
            response = await self._threads.run(settle, self._worker, orders)
            self._queued -= sum(len(order.leases) for order in orders)
            self._has_room.set()
            if response.results:
                await self._write(response.SerializeToString())

    def _next_orders(self) -> list[Order]:
        """Return the next settlements that one transaction can store."""
        orders = [self._orders.popleft()]
        size = len(orders[0].leases)
        while self._orders and self._orders[0].is_like(orders[0]):
            size += len(self._orders[0].leases)
            if size > BATCH:
                break
            orders.append(self._orders.popleft())
        return orders

    def _close(self) -> None:
        """Give back what was not sent, and settle what the client has settled."""
        self._give_back()
        while self._orders:
            self._threads.submit(settle, self._worker, self._next_orders())

    def _give_back(self) -> None:
        """Undo the claims of messages that were not sent, and take no others."""
        with self._lock:
            self._takes_nothing = True
            chunks, self._chunks = self._chunks, deque()
        for chunk in chunks:
            consumer_id = chunk.messages[0].row.consumer_id
            self._threads.submit(receiving.take_back, consumer_id, chunk.worker, chunk.messages)


def order_of(settlement: Settlement) -> Order:
    """Check a settlement. Raises Invalid."""
    options = _OPTIONS.get(settlement.action)
    if options is None:
        raise Invalid("invalid_fields", "Choose ACK, NACK, RELEASE or EXTEND.", field="action")
    if len(settlement.leases) > MAX_LEASES:
        detail = f"A settlement has at most {MAX_LEASES} leases."
        raise Invalid("invalid_fields", detail, field="leases")
    asked: dict[str, Any] = {}
    for name in ("delay_s", "lease_s"):
        if settlement.HasField(name):
            asked[name] = getattr(settlement, name)
    if settlement.error:
        asked["error"] = settlement.error
    if settlement.final:
        asked["final"] = True
    leases = tuple(dict.fromkeys(settlement.leases))
    return Order(settlement.id, settlement.action, leases, options.read(asked))


def settle(worker: Worker, orders: Sequence[Order]) -> ReceiveResponse:
    """Settle the leases of like orders in one transaction. Runs in a thread.

    Raises what the REST API raises.
    """
    principal, first = worker.principal(), orders[0]
    asked = {"leases": [lease for order in orders for lease in order.leases], **first.options}
    if first.action == Settlement.ACK:
        done = calls.ended(principal, asked, Outcome.DELIVERED)
    elif first.action == Settlement.NACK:
        done = calls.ended(principal, asked, Outcome.REJECTED)
    elif first.action == Settlement.RELEASE:
        done = calls.released(principal, asked)
    else:
        done = calls.extended(principal, asked)
    failed = {failure["lease"]: failure["error"] for failure in done["failed"]}
    results = [
        SettlementResult(
            id=order.id,
            failed=[
                LeaseFailure(lease=lease, error=failed[lease])
                for lease in order.leases
                if lease in failed
            ],
        )
        for order in orders
    ]
    return ReceiveResponse(results=[result for result in results if result.id or result.failed])


def chunks_of(
    messages: Sequence[ReceivedMessage], consumer: ConsumerConfig, claim: Claim
) -> list[Chunk]:
    """Return the responses that carry these messages, each of a limited size."""
    groups: list[list[ReceivedMessage]] = []
    room = 0
    for message in messages:
        size = len(message.payload.body or b"")
        if size > room or not groups:
            groups.append([])
            room = CHUNK_BYTES
        groups[-1].append(message)
        room -= size
    return [
        Chunk(
            ReceiveResponse(
                deliveries=[
                    delivery_of(message, consumer, settled=claim.settled) for message in group
                ]
            ).SerializeToString(),
            group,
            claim.worker,
        )
        for group in groups
    ]


def delivery_of(received: ReceivedMessage, consumer: ConsumerConfig, *, settled: bool) -> Delivery:
    """Return the message for the client; without a lease if it is settled on receipt."""
    row, payload = received.row, received.payload
    message = ids.to_public(ids.MESSAGE, row.message_id)
    delivery = Delivery(
        id=message,
        delivery_id=ids.to_public(ids.DELIVERY, row.id),
        attempt=row.tries,
        max_attempts=consumer.retry_for(row.event_type).max_attempts,
        event_type=row.event_type,
        priority=row.priority,
        ordering_key=row.ordering_key,
        replay=row.replayed,
        accepted_at=timestamp(row.accepted_at),
        content_type=payload.content_type,
        headers=payload.headers,
    )
    if not settled:
        delivery.lease = received.token
        delivery.lease_expires_at.CopyFrom(timestamp(row.lease_until))
    if payload.body is None or len(payload.body) > MAX_INLINE_BYTES:
        delivery.body_url = url(f"messages/{message}/body")
    else:
        delivery.body = payload.body
    return delivery


def timestamp(instant: datetime) -> Timestamp:
    """Return an instant as protobuf writes it."""
    seconds, micros = divmod((instant - _UNIX) // _MICROSECOND, 1_000_000)
    return Timestamp(seconds=seconds, nanos=micros * 1000)
