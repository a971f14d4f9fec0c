"""Run the gRPC server: its calls, limits and orderly stop."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import grpc
from grpc import aio

from channels_app.core.errors import RateLimited
from channels_app.database import transactions
from channels_app.garbage import freeze_loaded_objects
from channels_app.ingest import publication
from channels_app.ingest.concurrency import TURN_S, ConcurrencyLimit, bodies
from channels_app.registry import authentication
from delivery.cluster import children, web_watch
from delivery.conf import conf
from delivery.grpc import errors, publish
from delivery.grpc.publish import PublishStream
from delivery.grpc.receive import ReceiveStream
from delivery.grpc.threads import Threads
from delivery.processes import registration
from delivery.pull import calls
from delivery.pull.long_polling import long_polls
from delivery.pull.receiving import polls

log = logging.getLogger(__name__)

SERVICE = "hookstation.v1.Hookstation"
THREADS = 16
MAX_STREAMS = 1024
"""Streams at the same time. No team or producer may have more than remain free for others."""
MAX_CALLS = 2 * MAX_STREAMS
"""Calls at the same time, including those that are not authenticated yet."""
REQUEST_ROOM = 64 * 1024
"""Bytes of a request besides the body of its largest message."""
STOP_S = 5.0
"""Seconds that a stop waits for workers to settle what they hold."""
USE_WRITE_INTERVAL_S = 1.0
TOO_MANY = "Too many streams are open already; close one, or use the REST API."

Context: TypeAlias = "aio.ServicerContext[bytes, bytes]"
Meta: TypeAlias = Mapping[str, str]


class Stream(Protocol):
    """A stream of either kind."""

    async def serve(self, requests: AsyncIterator[bytes]) -> None:
        """Serve until the client closes its side. Raises what refuses the stream."""

    def stop(self) -> None:
        """End soon, because the broker stops."""


MakeStream: TypeAlias = Callable[[Meta, Callable[[bytes], Awaitable[None]], Threads], Stream]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The PEM files of the server's certificate chain and its key."""

    chain: Path
    key: Path

    def credentials(self) -> grpc.ServerCredentials:
        """Raises OSError."""
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.chain.read_bytes())])


def configured_certificate() -> Certificate | None:
    """Return the certificate of the settings; None to serve without TLS. Raises OSError."""
    chain, key = conf().grpc_certificate, conf().grpc_certificate_key
    if not chain and not key:
        return None
    if not (chain and key):
        raise OSError(
            "HOOKSTATION_GRPC_CERTIFICATE and HOOKSTATION_GRPC_CERTIFICATE_KEY go together."
        )
    return Certificate(Path(chain), Path(key))


class Service:
    """The calls of hookstation.proto."""

    def __init__(self) -> None:
        self._threads = Threads(THREADS)
        self._streams: set[Stream] = set()
        self._places = ConcurrencyLimit(MAX_STREAMS)
        self._is_stopping = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the calls by name. Requests and responses are bytes."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Receive": grpc.stream_stream_rpc_method_handler(self.receive),
                "Publish": grpc.unary_unary_rpc_method_handler(self.publish),
                "PublishStream": grpc.stream_stream_rpc_method_handler(self.publish_stream),
            },
        )

    async def receive(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Handle the call Receive."""
        await self._serve(requests, context, ReceiveStream, calls.SCOPES)

    async def publish_stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Handle the call PublishStream."""
        await self._serve(requests, context, PublishStream, publication.SCOPES)

    async def publish(self, content: bytes, context: Context) -> bytes:
        """Handle the call Publish."""
        try:
            return await self._threads.run(publish.publish, _meta(context), content)
        except Exception as error:
            await _refuse(context, error)
            raise

    async def stop(self) -> None:
        """Let streams end, and waiting claims too."""
        self._is_stopping = True
        for stream in list(self._streams):
            stream.stop()
        await self._threads.run(long_polls.stop)

    async def write_uses(self) -> None:
        """Store when keys were last used, until cancelled."""
        while True:
            await asyncio.sleep(USE_WRITE_INTERVAL_S)
            await self._threads.run(authentication.write_uses)

    def close(self) -> None:
        """Finish what runs in threads."""
        self._threads.close()

    async def _serve(
        self,
        requests: AsyncIterator[bytes],
        context: Context,
        make: MakeStream,
        scopes: Sequence[str],
    ) -> None:
        try:
            meta = _meta(context)
            principal = await self._threads.run(authentication.authenticate, meta, scopes)
            if not self._places.take(principal.owner, waits=False):
                raise RateLimited("too_many_streams", TOO_MANY)
            stream = make(meta, context.write, self._threads)
            self._streams.add(stream)
            try:
                if self._is_stopping:
                    stream.stop()
                await stream.serve(requests)
            finally:
                self._streams.discard(stream)
                self._places.give_back(principal.owner)
        except aio.InternalError as error:
            # The client is gone: there is nobody to write to.
            log.info("a stream broke: %s", error)
        except Exception as error:
            await _refuse(context, error)


def run(address: str, certificate: Certificate | None) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError if the address or the files cannot be used."""
    transactions.limit_answer_time(transactions.REQUEST_TIMEOUT_S)
    bodies.limit(THREADS * 5 // 8)
    polls.limit(children.long_polls())
    sys.setswitchinterval(TURN_S)  # the event loop is one of many threads
    freeze_loaded_objects()
    asyncio.run(_run(address, certificate))


async def _run(address: str, certificate: Certificate | None) -> None:
    service, stopped = Service(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = aio.server(options=_options(), maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers((service.handlers(),))
    try:
        if certificate is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, certificate.credentials())
    except RuntimeError as error:
        raise OSError(str(error)) from error
    await server.start()
    web_watch.begin()
    registration.change_marker.start(long_polls.start())
    uses = asyncio.create_task(service.write_uses())
    log.info("gRPC streams on %s", address)
    await stopped.wait()
    await service.stop()
    await server.stop(min(STOP_S, conf().grace_s / 2))
    uses.cancel()
    service.close()


def _options() -> list[tuple[str, Any]]:
    return [
        # A second server on the port would take half of the connections unnoticed.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", conf().max_body_bytes + REQUEST_ROOM),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        # Notice dead hosts after a minute and a half, as web processes do.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 30_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


def _meta(context: Context) -> Meta:
    """Return what authentication reads of a request."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            return {"HTTP_AUTHORIZATION": value}
    return {}


async def _refuse(context: Context, error: Exception) -> None:
    """End the call with the status and the problem of an error."""
    if isinstance(error, aio.AbortError):
        raise error
    problem = errors.problem_of(error)
    trailing = ((errors.PROBLEM_KEY, problem.SerializeToString()),)
    await context.abort(errors.code_of(problem), problem.detail, trailing_metadata=trailing)
