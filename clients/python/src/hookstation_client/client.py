"""The clients: `Hookstation` is blocking, `AsyncHookstation` is for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import (
    Any,
    TypeVar,
)

import httpx

from hookstation_client.addresses import CONNECT_TIMEOUT_S, Address, Addresses, addresses_of
from hookstation_client.buffer import AsyncBuffer, Buffer, Refused
from hookstation_client.calls import (
    Call,
    Pages,
    Tries,
    async_listing,
    awaiting,
    blocking,
    check,
    connection_failed,
    listing,
)
from hookstation_client.errors import HookstationError, LeaseLost
from hookstation_client.models import ReceivedMessage, Settled, received_fields
from hookstation_client.operations import Operations, ScheduleOperations
from hookstation_client.reconciliation import Reconciliation, replay_of

T = TypeVar("T")

TIMEOUT_S = 30.0
RETRIES = 6
CONNECTIONS = 100


class _Common:
    """The settings of a client; builds the HTTP request for a call."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        key: str | None = None,
        timeout: float = TIMEOUT_S,
        retries: int = RETRIES,
        grpc: str | None = None,
        looks_up: bool = True,
    ) -> None:
        urls = addresses_of(url)
        self._addresses = Addresses(urls, looks_up=looks_up)
        self.url = ",".join(urls)
        self.timeout = timeout
        self.retries = retries
        self.grpc = grpc if grpc is not None else os.environ.get("HOOKSTATION_GRPC_URL") or ""
        self.key = key or os.environ.get("HOOKSTATION_KEY") or ""
        if not self.key:
            raise ValueError("Pass the key, or set HOOKSTATION_KEY.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _tries(self, call: Call[Any]) -> Tries:
        return Tries(call, self._addresses, self.retries)

    def _request(self, http: Any, call: Call[Any], address: Address) -> httpx.Request:
        connect = min(self.timeout, CONNECT_TIMEOUT_S) if len(self._addresses) > 1 else self.timeout
        request: httpx.Request = http.build_request(
            call.method,
            address.url + call.path,
            params=call.params or None,
            headers={"Authorization": f"Bearer {self.key}", **address.headers, **call.headers},
            content=call.content,
            timeout=httpx.Timeout(self.timeout, connect=connect, read=self.timeout + call.wait_s),
            extensions=address.extensions,
        )
        return request


class Hookstation(_Common):
    """The blocking client. Thread-safe.

    ``url`` and ``key`` default to ``HOOKSTATION_URL`` and ``HOOKSTATION_KEY``. ``url`` may be
    several addresses of one broker. A host name with several DNS records also counts as several
    addresses. While one address fails, the client uses the next one.

    ``timeout`` is the limit in seconds for connecting, for sending and for each read of a response;
    a long poll adds its own time. If it is safe, the client retries a failed request up to
    ``retries`` times, at each address, always with the same idempotency key. ``grpc`` is the
    address of the broker's gRPC server, ``grpc://host:port`` or, for TLS, ``grpcs://host:port``; a
    `Worker` then receives over a stream. It defaults to ``HOOKSTATION_GRPC_URL``. ``http`` is an
    httpx client to use instead of the default one, for example with other certificates or proxies;
    then only that client looks up host names.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        key: str | None = None,
        timeout: float = TIMEOUT_S,
        retries: int = RETRIES,
        grpc: str | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(
            url, key=key, timeout=timeout, retries=retries, grpc=grpc, looks_up=http is None
        )
        self._given_http = http
        self._http = http or self._new_http()
        self._pid = os.getpid()

    publish = blocking(Operations.publish)
    publish_batch = blocking(Operations.publish_batch)
    message = blocking(Operations.message)
    body = blocking(Operations.body)
    messages = listing(Operations.messages)
    timeline = listing(Operations.timeline)
    timeline_histogram = blocking(Operations.timeline_histogram)
    move = blocking(Operations.move)
    cancel = blocking(Operations.cancel)
    move_many = blocking(Operations.move_many)
    cancel_many = blocking(Operations.cancel_many)
    create_channel = blocking(Operations.create_channel)
    channel = blocking(Operations.channel)
    channels = listing(Operations.channels)
    create_event_type = blocking(Operations.create_event_type)
    event_types = listing(Operations.event_types)
    delete_event_type = blocking(Operations.delete_event_type)
    register = blocking(Operations.register)
    update_consumer = blocking(Operations.update_consumer)
    consumer = blocking(Operations.consumer)
    consumers = listing(Operations.consumers)
    retire_consumer = blocking(Operations.retire_consumer)
    pause_consumer = blocking(Operations.pause_consumer)
    resume_consumer = blocking(Operations.resume_consumer)
    rotate_secret = blocking(Operations.rotate_secret)
    test_consumer = blocking(Operations.test_consumer)
    ack = blocking(Operations.ack)
    nack = blocking(Operations.nack)
    extend = blocking(Operations.extend)
    release = blocking(Operations.release)
    delivery = blocking(Operations.delivery)
    deliveries = listing(Operations.deliveries)
    dead_letters = listing(Operations.dead_letters)
    replay_delivery = blocking(Operations.replay_delivery)
    cancel_delivery = blocking(Operations.cancel_delivery)
    replay = blocking(Operations.replay)
    replay_progress = blocking(Operations.replay_progress)
    replays = listing(Operations.replays)
    cancel_replay = blocking(Operations.cancel_replay)
    backfill = blocking(Operations.backfill)
    expected = listing(Operations.expected)
    _receive = blocking(Operations.receive_call)

    def receive_batch(self, channel: str, consumer: str, **options: Any) -> list[Delivery]:
        """Receive up to ``max`` messages for a pull consumer, in one call.

        Options are ``max`` (default 10), ``wait`` (seconds to wait for a message, 0 to 20, default
        0), ``lease`` (seconds until another worker may receive the messages, default 30),
        ``worker_id``, ``keys``, ``resume`` and ``auto_ack`` (docs/api.md, "Pull consumers").
        """
        found = self._receive(channel, consumer, **options)
        received = [Delivery(client=self, **received_fields(item)) for item in found]
        try:
            for delivery in received:
                if delivery.body_url:
                    delivery.body = self.body(delivery.id)
        except HookstationError:
            # The caller does not get them, so release them for the next receive call.
            with contextlib.suppress(HookstationError):
                self.release([one for one in received if one.lease])
            raise
        return received

    def receive(
        self, channel: str, consumer: str, *, max: int = 10, wait: float = 20, **options: Any
    ) -> Iterator[Delivery]:
        """Iterate endlessly over the messages of a pull consumer.

        With ``wait=0`` the iterator ends when there is nothing to receive. The options are those
        of `receive_batch`. Settle each message before you take the next one, with `ack`, `nack` or
        `release`.
        """
        while True:
            batch = self.receive_batch(channel, consumer, max=max, wait=wait, **options)
            yield from batch
            options["resume"] = False
            if not batch and not wait:
                return

    def reconcile(
        self,
        channel: str,
        consumer: str,
        *,
        seen: Callable[[str], bool],
        after: str | None = None,
        replay: bool = False,
    ) -> Reconciliation:
        """Compare the broker's record of a consumer's messages with the consumer's own.

        ``seen(message_id)`` returns whether the consumer has the message. The comparison covers
        messages accepted after the message ``after``, up to two seconds ago. With ``replay``, the
        broker sends missing and dead messages again. Store ``last`` of the result, and pass it as
        ``after`` the next time.
        """
        result = Reconciliation(last=after)
        for item in self.expected(channel, consumer, after=after):
            result.add(item, seen(item["message_id"]))
        if replay:
            for ids in result.batches():
                result.replays.append(self.replay(**replay_of(ids)))
        return result

    def buffer(
        self,
        channel: str,
        *,
        spool: str | Path | None = None,
        fsync: bool = False,
        on_refused: Callable[[Refused], None] | None = None,
    ) -> Buffer:
        """Return a `Buffer`, which publishes to the channel in the background."""
        return Buffer(self, channel, spool=spool, fsync=fsync, on_refused=on_refused)

    def schedules(self, channel: str) -> Schedules:
        """Return the schedules of a channel."""
        return Schedules(self, channel)

    def close(self) -> None:
        """Close the connections, unless they belong to the ``http`` that was passed."""
        if self._given_http is None:
            self._http.close()

    def __enter__(self) -> Hookstation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        tries = self._tries(call)
        while True:
            self._look_up()
            try:
                return call.parse(check(self._once(call, tries.address())))
            except HookstationError as error:
                wait = tries.wait_after(error)
                if wait is None:
                    raise
            time.sleep(wait)

    def _look_up(self) -> None:
        for name in self._addresses.names():
            # If the look-up fails, connecting fails as well and reports the error.
            with contextlib.suppress(OSError):
                found = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
                self._addresses.add_records(name.url, found)

    def _once(self, call: Call[Any], address: Address) -> httpx.Response:
        if self._pid != os.getpid() and self._given_http is None:
            # After a fork the connections belong to the parent process.
            self._http, self._pid = self._new_http(), os.getpid()
        try:
            return self._http.send(self._request(self._http, call, address))
        except httpx.TransportError as error:
            raise connection_failed(call, error) from error

    def _iterate(self, pages: Pages[T]) -> Iterator[T]:
        cursor: str | None = None
        while True:
            page = self._send(pages.page(cursor))
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def _new_http(self) -> httpx.Client:
        return httpx.Client(limits=_limits())


class AsyncHookstation(_Common):
    """The client for asyncio. Its methods have the same names; await them or use ``async for``."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        key: str | None = None,
        timeout: float = TIMEOUT_S,
        retries: int = RETRIES,
        grpc: str | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(
            url, key=key, timeout=timeout, retries=retries, grpc=grpc, looks_up=http is None
        )
        self._given_http = http
        self._http = http or httpx.AsyncClient(limits=_limits())

    publish = awaiting(Operations.publish)
    publish_batch = awaiting(Operations.publish_batch)
    message = awaiting(Operations.message)
    body = awaiting(Operations.body)
    messages = async_listing(Operations.messages)
    timeline = async_listing(Operations.timeline)
    timeline_histogram = awaiting(Operations.timeline_histogram)
    move = awaiting(Operations.move)
    cancel = awaiting(Operations.cancel)
    move_many = awaiting(Operations.move_many)
    cancel_many = awaiting(Operations.cancel_many)
    create_channel = awaiting(Operations.create_channel)
    channel = awaiting(Operations.channel)
    channels = async_listing(Operations.channels)
    create_event_type = awaiting(Operations.create_event_type)
    event_types = async_listing(Operations.event_types)
    delete_event_type = awaiting(Operations.delete_event_type)
    register = awaiting(Operations.register)
    update_consumer = awaiting(Operations.update_consumer)
    consumer = awaiting(Operations.consumer)
    consumers = async_listing(Operations.consumers)
    retire_consumer = awaiting(Operations.retire_consumer)
    pause_consumer = awaiting(Operations.pause_consumer)
    resume_consumer = awaiting(Operations.resume_consumer)
    rotate_secret = awaiting(Operations.rotate_secret)
    test_consumer = awaiting(Operations.test_consumer)
    ack = awaiting(Operations.ack)
    nack = awaiting(Operations.nack)
    extend = awaiting(Operations.extend)
    release = awaiting(Operations.release)
    delivery = awaiting(Operations.delivery)
    deliveries = async_listing(Operations.deliveries)
    dead_letters = async_listing(Operations.dead_letters)
    replay_delivery = awaiting(Operations.replay_delivery)
    cancel_delivery = awaiting(Operations.cancel_delivery)
    replay = awaiting(Operations.replay)
    replay_progress = awaiting(Operations.replay_progress)
    replays = async_listing(Operations.replays)
    cancel_replay = awaiting(Operations.cancel_replay)
    backfill = awaiting(Operations.backfill)
    expected = async_listing(Operations.expected)
    _receive = awaiting(Operations.receive_call)

    async def receive_batch(
        self, channel: str, consumer: str, **options: Any
    ) -> list[AsyncDelivery]:
        """Receive up to ``max`` messages; the options are those of `Hookstation.receive_batch`."""
        found = await self._receive(channel, consumer, **options)
        received = [AsyncDelivery(client=self, **received_fields(item)) for item in found]
        try:
            for delivery in received:
                if delivery.body_url:
                    delivery.body = await self.body(delivery.id)
        except HookstationError:
            with contextlib.suppress(HookstationError):
                await self.release([one for one in received if one.lease])
            raise
        return received

    async def receive(
        self, channel: str, consumer: str, *, max: int = 10, wait: float = 20, **options: Any
    ) -> AsyncIterator[AsyncDelivery]:
        """Iterate over the messages of a pull consumer; ``wait=0`` ends when there are none."""
        while True:
            batch = await self.receive_batch(channel, consumer, max=max, wait=wait, **options)
            for delivery in batch:
                yield delivery
            options["resume"] = False
            if not batch and not wait:
                return

    async def reconcile(
        self,
        channel: str,
        consumer: str,
        *,
        seen: Callable[[str], bool | Awaitable[bool]],
        after: str | None = None,
        replay: bool = False,
    ) -> Reconciliation:
        """Like `Hookstation.reconcile`; ``seen`` may be a coroutine function."""
        result = Reconciliation(last=after)
        async for item in self.expected(channel, consumer, after=after):
            known = seen(item["message_id"])
            result.add(item, known if isinstance(known, bool) else await known)
        if replay:
            for ids in result.batches():
                result.replays.append(await self.replay(**replay_of(ids)))
        return result

    def buffer(
        self,
        channel: str,
        *,
        spool: str | Path | None = None,
        fsync: bool = False,
        on_refused: Callable[[Refused], None] | None = None,
        client: Hookstation | None = None,
    ) -> AsyncBuffer:
        """Return an `AsyncBuffer`. It sends with ``client``, by default one like this client."""
        owned = None
        if client is None:
            client = owned = Hookstation(
                self.url, key=self.key, timeout=self.timeout, retries=self.retries
            )
        buffer = Buffer(client, channel, spool=spool, fsync=fsync, on_refused=on_refused)
        return AsyncBuffer(buffer, owned)

    def schedules(self, channel: str) -> AsyncSchedules:
        """Return the schedules of a channel."""
        return AsyncSchedules(self, channel)

    async def close(self) -> None:
        """Close the connections, unless they belong to the ``http`` that was passed."""
        if self._given_http is None:
            await self._http.aclose()

    async def __aenter__(self) -> AsyncHookstation:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _send(self, call: Call[T]) -> T:
        tries = self._tries(call)
        while True:
            await self._look_up()
            try:
                return call.parse(check(await self._once(call, tries.address())))
            except HookstationError as error:
                wait = tries.wait_after(error)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    async def _look_up(self) -> None:
        loop = asyncio.get_running_loop()
        for name in self._addresses.names():
            # If the look-up fails, connecting fails as well and reports the error.
            with contextlib.suppress(OSError):
                found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
                self._addresses.add_records(name.url, found)

    async def _once(self, call: Call[Any], address: Address) -> httpx.Response:
        try:
            return await self._http.send(self._request(self._http, call, address))
        except httpx.TransportError as error:
            raise connection_failed(call, error) from error

    async def _iterate(self, pages: Pages[T]) -> AsyncIterator[T]:
        cursor: str | None = None
        while True:
            page = await self._send(pages.page(cursor))
            for item in page.items:
                yield item
            cursor = page.next
            if cursor is None:
                return


class Schedules:
    """The schedules of one channel."""

    def __init__(self, client: Hookstation, channel: str) -> None:
        self.channel = channel
        self._send = client._send
        self._iterate = client._iterate

    put = blocking(ScheduleOperations.put)
    update = blocking(ScheduleOperations.update)
    get = blocking(ScheduleOperations.get)
    list = listing(ScheduleOperations.list)
    delete = blocking(ScheduleOperations.delete)
    pause = blocking(ScheduleOperations.pause)
    resume = blocking(ScheduleOperations.resume)
    run = blocking(ScheduleOperations.run)


class AsyncSchedules:
    """`Schedules` for asyncio."""

    def __init__(self, client: AsyncHookstation, channel: str) -> None:
        self.channel = channel
        self._send = client._send
        self._iterate = client._iterate

    put = awaiting(ScheduleOperations.put)
    update = awaiting(ScheduleOperations.update)
    get = awaiting(ScheduleOperations.get)
    list = async_listing(ScheduleOperations.list)
    delete = awaiting(ScheduleOperations.delete)
    pause = awaiting(ScheduleOperations.pause)
    resume = awaiting(ScheduleOperations.resume)
    run = awaiting(ScheduleOperations.run)


class Delivery(ReceivedMessage):
    """A received message, with methods that settle it.

    Each method raises `LeaseLost` if the lease has ended, so that another worker may have received
    the message.
    """

    def __init__(self, *, client: Hookstation, **fields: Any) -> None:
        super().__init__(**fields)
        self._client = client

    def ack(self) -> None:
        """Acknowledge the message: it is delivered."""
        settled(self, self._client.ack(self))

    def nack(self, delay: int | None = None, error: str | None = None, final: bool = False) -> None:
        """Report a failed attempt. The broker retries after ``delay`` seconds.

        Without ``delay``, the consumer's retry policy sets the time. With ``final`` the delivery is
        dead at once.
        """
        settled(self, self._client.nack(self, delay=delay, error=error, final=final))

    def extend(self, lease: int) -> None:
        """Make the lease end ``lease`` seconds from now."""
        settled(self, self._client.extend(self, lease))

    def release(self, delay: int | None = None) -> None:
        """Return the message, to be received again at once or after ``delay`` seconds."""
        settled(self, self._client.release(self, delay=delay))


class AsyncDelivery(ReceivedMessage):
    """`Delivery` for asyncio."""

    def __init__(self, *, client: AsyncHookstation, **fields: Any) -> None:
        super().__init__(**fields)
        self._client = client

    async def ack(self) -> None:
        """Acknowledge the message: it is delivered."""
        settled(self, await self._client.ack(self))

    async def nack(
        self, delay: int | None = None, error: str | None = None, final: bool = False
    ) -> None:
        """Report a failed attempt. The broker retries after ``delay`` seconds.

        Without ``delay``, the consumer's retry policy sets the time. With ``final`` the delivery is
        dead at once.
        """
        settled(self, await self._client.nack(self, delay=delay, error=error, final=final))

    async def extend(self, lease: int) -> None:
        """Make the lease end ``lease`` seconds from now."""
        settled(self, await self._client.extend(self, lease))

    async def release(self, delay: int | None = None) -> None:
        """Return the message, to be received again at once or after ``delay`` seconds."""
        settled(self, await self._client.release(self, delay=delay))


def settled(message: ReceivedMessage, result: Settled) -> None:
    """Raise `LeaseLost` unless the call settled the message."""
    reason = result.failed.get(message.lease)
    if reason is not None:
        raise LeaseLost(f"The lease of {message.id} cannot be used: {reason}.", code=reason)


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
