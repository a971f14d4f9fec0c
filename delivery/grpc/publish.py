"""Publish single messages, or a stream of messages that are stored in their order.

A stream's messages are stored in groups: those that arrive while one group is stored form the next.
A client that sends faster than the broker stores is held back, because the stream is not read any
further.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

from channels_app.conf import MAX_BATCH_ITEMS
from channels_app.core.errors import BrokerError, Conflict, Invalid, Unavailable
from channels_app.database import clock
from channels_app.ingest import limits, publication, sequencing
from channels_app.ingest.accept import Publication
from channels_app.registry import authentication
from channels_app.registry.cache import ChannelConfig
from delivery.grpc import errors
from delivery.grpc.hookstation_pb2 import (
    PublishBatch,
    Published,
    PublishRequest,
    PublishResult,
    PublishResults,
)
from delivery.grpc.threads import Threads

MAX_GROUP_MESSAGES = 200
MAX_GROUP_BYTES = 1024 * 1024
"""Limits of a group of batches that are stored together. A larger batch is stored alone."""
MAX_QUEUED_BYTES = 2 * 1024 * 1024
"""Size of the batches that wait; above that the client's requests are not read."""
STOPPING = "The broker stops; send what was not answered again."
TEXTS = ("content_type", "idempotency_key", "event_type", "ordering_key")
NUMBERS = ("priority", "delay_ms", "spread_ms", "producer_seq")
INSTANTS = ("deliver_at", "expires_at")
Write = Callable[[bytes], Awaitable[None]]
Meta = Mapping[str, str]
Result = Published | Exception
"""The result for a message; an error if it was refused."""
ENDING = {401, 500, 503, 507}
"""HTTP statuses of errors that concern all messages of a stream."""


def publish(meta: Meta, content: bytes) -> bytes:
    """Store one message; returns a serialized ``Published``. Raises what the REST API raises."""
    (result,) = store(meta, [PublishRequest.FromString(content)])
    if isinstance(result, Exception):
        raise result
    return result.SerializeToString()


class PublishStream:
    """One stream of one producer."""

    def __init__(self, meta: Meta, write: Write, threads: Threads) -> None:
        self._meta, self._write, self._threads = meta, write, threads
        self._batches: deque[tuple[PublishBatch, int]] = deque()
        self._size = 0
        self._is_over = self._is_stopping = False
        self._may_store, self._has_room = asyncio.Event(), asyncio.Event()

    async def serve(self, requests: AsyncIterator[bytes]) -> None:
        """Serve until the client closes its side and all is stored. Raises what refuses it."""
        await self._threads.run(authentication.authenticate, self._meta, publication.SCOPES)
        reader = asyncio.create_task(self._read(requests))
        storer = asyncio.create_task(self._store())
        try:
            await asyncio.wait({reader, storer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                await reader
            await storer
        finally:
            for task in (reader, storer):
                task.cancel()
            await asyncio.gather(reader, storer, return_exceptions=True)
        if self._is_stopping:
            raise Unavailable("stopping", STOPPING)

    def stop(self) -> None:
        """Answer the requests that were read, and then end."""
        self._is_stopping = self._is_over = True
        self._may_store.set()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        async for content in requests:
            batch = PublishBatch.FromString(content)
            if len(batch.messages) > MAX_BATCH_ITEMS:
                detail = f"A batch has at most {MAX_BATCH_ITEMS} messages; send several batches."
                raise Invalid("batch_too_large", detail)
            self._batches.append((batch, len(content)))
            self._size += len(content)
            self._may_store.set()
            while self._size > MAX_QUEUED_BYTES:
                self._has_room.clear()
                await self._has_room.wait()
        self._is_over = True
        self._may_store.set()

    async def _store(self) -> None:
        while self._batches or not self._is_over:
            self._may_store.clear()
            if not self._batches:
                await self._may_store.wait()
                continue
            batches, size = self._next_group()
            messages = [message for batch in batches for message in batch.messages]
            results = iter(await self._threads.run(store, self._meta, messages))
            for batch in batches:
                response = PublishResults(
                    results=[result_of(next(results)) for _ in batch.messages]
                )
                await self._write(response.SerializeToString())
            self._size -= size
            self._has_room.set()

    def _next_group(self) -> tuple[list[PublishBatch], int]:
        batch, size = self._batches.popleft()
        batches, count = [batch], len(batch.messages)
        while self._batches:
            batch, more = self._batches[0]
            count += len(batch.messages)
            if count > MAX_GROUP_MESSAGES or size + more > MAX_GROUP_BYTES:
                break
            batches.append(batch)
            size += more
            self._batches.popleft()
        return batches, size


def store(meta: Meta, requests: Sequence[PublishRequest]) -> list[Result]:
    """Store messages in their order, those of one channel in one transaction. Runs in a thread.

    Raises what ends the stream: a key that is not valid any more, or an unavailable database.
    """
    results: dict[int, Result] = {}
    for channel, places in _by_channel(requests):
        group = [requests[place] for place in places]
        try:
            results |= zip(places, _store(meta, channel, group), strict=True)
        except Exception as error:
            problem = errors.problem_of(error)
            if problem.status in ENDING:
                raise
            results |= dict.fromkeys(places, error)
    return [results[place] for place in range(len(requests))]


def options_of(request: PublishRequest) -> dict[str, Any]:
    """Return the options that are set, as a batch of the REST API has them. Raises BrokerError."""
    options: dict[str, Any] = {name: value for name in TEXTS if (value := getattr(request, name))}
    options |= {name: getattr(request, name) for name in NUMBERS if request.HasField(name)}
    for name in INSTANTS:
        if request.HasField(name):
            try:
                options[name] = getattr(request, name).ToDatetime(UTC).isoformat()
            except (ValueError, OverflowError):
                detail = "The instant is not within the years 1 to 9999."
                raise Invalid("invalid_fields", detail, field=name) from None
    return options


def result_of(result: Result) -> PublishResult:
    """Return the result for the client."""
    if isinstance(result, Exception):
        return PublishResult(problem=errors.problem_of(result))
    return PublishResult(published=result)


def _by_channel(requests: Sequence[PublishRequest]) -> Iterator[tuple[str, list[int]]]:
    """Yield each channel with the places of its messages."""
    places: dict[str, list[int]] = {}
    for place, request in enumerate(requests):
        places.setdefault(request.channel, []).append(place)
    yield from places.items()


def _store(meta: Meta, channel: str, requests: Sequence[PublishRequest]) -> list[Result]:
    principal = authentication.authenticate(meta, publication.SCOPES, channel)
    channel_config = publication.channel_of(channel, refresh=False)
    producer, now = principal.producer, clock.now()
    producer_id = principal.producer_id
    limits.check(channel_config, producer_id)
    read: list[Publication | Exception] = []
    for request in requests:
        try:
            options = options_of(request)
            read.append(
                publication.from_options(
                    options, dict(request.headers), request.body, channel_config, producer, now
                )
            )
        except BrokerError as problem:
            read.append(problem)
    messages = [item for item in read if isinstance(item, Publication)]
    publication.check_rate(producer, len(messages))
    stored = iter(
        sequencing.accept_in_sequence(channel_config, producer_id, messages, principal.owner)
    )
    return [
        _published(channel_config, item, next(stored)) if isinstance(item, Publication) else item
        for item in read
    ]


def _published(channel: ChannelConfig, message: Publication, result: sequencing.Result) -> Result:
    if isinstance(result, BrokerError):
        return result
    if result.conflict:
        return Conflict("idempotency_conflict", publication.CONFLICT, field="idempotency_key")
    shown = publication.show(channel, message, result)
    published = Published(
        id=shown["id"],
        duplicate=shown["duplicate"],
        matched_consumers=shown["matched_consumers"],
        url=shown["url"],
    )
    published.due_at.FromDatetime(result.due_at)
    return published
