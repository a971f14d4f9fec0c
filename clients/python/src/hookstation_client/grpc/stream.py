"""Receive a pull consumer's messages over one gRPC stream, and settle them on it.

The broker sends as many messages as the client has granted credits. Settlements that are made at
the same time leave in one request.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Callable, NamedTuple
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError

from hookstation_client.errors import ConnectionFailed, HookstationError, error_of_item
from hookstation_client.grpc.hookstation_pb2 import (
    Delivery,
    Problem,
    ReceiveRequest,
    ReceiveResponse,
    Settlement,
    Subscription,
)

RECEIVE = "/hookstation.v1.Hookstation/Receive"
PROBLEM_KEY = "hookstation-problem-bin"
MAX_LEASES = 1_000
"""Leases of one settlement."""
MAX_MERGED = 1_000
"""Settlements and credits that one request carries."""
ACTIONS = {
    "ack": Settlement.ACK,
    "nack": Settlement.NACK,
    "release": Settlement.RELEASE,
    "extend": Settlement.EXTEND,
}
OPTIONS = (
    # Bodies may be as large as the broker allows.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Notice a broker whose host is gone.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_BY_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INVALID_ARGUMENT: 422,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}
"""HTTP statuses of refusals that do not come from the broker itself, such as a proxy's."""


class Settle(NamedTuple):
    """One settlement: ``action`` is ack, nack, release or extend."""

    action: str
    leases: tuple[str, ...]
    options: dict[str, Any]
    """``delay``, ``error`` and ``final`` of a nack, ``delay`` of a release, ``lease`` of an
    extension; durations in seconds."""

    def is_like(self, other: Settle) -> bool:
        """Whether one settlement can stand for both."""
        return (self.action, self.options) == (other.action, other.options)


def open_channel(url: str) -> grpc.Channel:
    """A connection to ``grpc://host:port``, or ``grpcs://host:port`` for TLS. Raises ValueError."""
    found = urlsplit(url)
    if found.scheme not in {"grpc", "grpcs"} or not found.netloc or found.path.strip("/"):
        raise ValueError(f"{url!r} is not grpc://host:port or grpcs://host:port.")
    if found.scheme == "grpcs":
        return grpc.secure_channel(found.netloc, grpc.ssl_channel_credentials(), OPTIONS)
    return grpc.insecure_channel(found.netloc, OPTIONS)


class Stream:
    """One stream of one worker. `responses` is for one thread, everything else for any."""

    def __init__(
        self,
        channel: grpc.Channel,
        key: str,
        subscription: Mapping[str, Any],
        credits: int,
        on_failed: Callable[[Settle, dict[str, str]], None] = lambda settle, failed: None,
    ) -> None:
        """``on_failed`` gets the leases of a settlement that failed, each with the reason."""
        self.is_open = False
        """Whether the broker has accepted the stream."""
        self.is_stopping = False
        """Whether the broker has said that it stops."""
        self._on_failed = on_failed
        self._ids = itertools.count(1)
        self._outgoing: queue.SimpleQueue[Settle | int | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Guards the attributes below."""
        self._unconfirmed: dict[int, Settle] = {}
        """What was sent, by the number of the settlement."""
        self._unsettled = 0
        """Leases of settlements that wait to be sent or confirmed."""
        first = ReceiveRequest(subscription=Subscription(**subscription), credits=credits)
        call = channel.stream_stream(
            RECEIVE,
            request_serializer=ReceiveRequest.SerializeToString,
            response_deserializer=ReceiveResponse.FromString,
        )
        self._call = call(self._requests(first), metadata=(("authorization", f"Bearer {key}"),))

    def responses(self) -> Iterator[list[Delivery]]:
        """Iterate over the messages as they come, several at a time, until the stream ends.

        A list without messages says that settlements were confirmed, or that the broker stops.
        Raises HookstationError if it was refused or broke.
        """
        try:
            for response in self._call:
                self.is_open = True
                for result in response.results:
                    self._confirm(result)
                self.is_stopping = self.is_stopping or response.stopping
                yield list(response.deliveries)
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        finally:
            self._outgoing.put(None)

    def grant(self, credits: int) -> None:
        """Let the broker send that many more messages."""
        self._outgoing.put(credits)

    def settle(self, action: str, *leases: str, **options: Any) -> None:
        """Settle leases, soon. What `unconfirmed` returns at the end may not be settled."""
        with self._lock:
            self._unsettled += len(leases)
        for start in range(0, len(leases), MAX_LEASES):
            self._outgoing.put(Settle(action, leases[start : start + MAX_LEASES], options))

    def close(self) -> None:
        """Send what is left and end the stream; `responses` ends when all is settled."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        """End the stream at once."""
        self._call.cancel()

    @property
    def unsettled(self) -> bool:
        """Whether settlements wait to be sent, or for the broker's confirmation."""
        return self._unsettled > 0

    def unconfirmed(self) -> list[Settle]:
        """What the broker has not confirmed. Call it when `responses` has ended."""
        with self._lock:
            left = list(self._unconfirmed.values())
        while True:
            try:
                item = self._outgoing.get_nowait()
            except queue.Empty:
                return left
            if isinstance(item, Settle):
                left.append(item)

    def _confirm(self, result: Any) -> None:
        with self._lock:
            settle = self._unconfirmed.pop(result.id, None)
            self._unsettled -= len(settle.leases) if settle is not None else 0
        if settle is not None and result.failed:
            self._on_failed(settle, {one.lease: one.error for one in result.failed})

    def _requests(self, first: ReceiveRequest) -> Iterator[ReceiveRequest]:
        yield first
        while True:
            item = self._outgoing.get()
            items = [item]
            # Whatever was said meanwhile goes along.
            while items[-1] is not None and len(items) < MAX_MERGED:
                try:
                    items.append(self._outgoing.get_nowait())
                except queue.Empty:
                    break
            credits = sum(one for one in items if isinstance(one, int))
            settles = merged([one for one in items if isinstance(one, Settle)])
            if credits or settles:
                yield ReceiveRequest(
                    credits=credits, settlements=[self._settlement(one) for one in settles]
                )
            if items[-1] is None:
                return

    def _settlement(self, settle: Settle) -> Settlement:
        number = next(self._ids)
        with self._lock:
            self._unconfirmed[number] = settle
        made = Settlement(id=number, action=ACTIONS[settle.action], leases=settle.leases)
        said = settle.options
        if said.get("delay") is not None:
            made.delay_s = said["delay"]
        if said.get("lease") is not None:
            made.lease_s = said["lease"]
        made.error = said.get("error") or ""
        made.final = bool(said.get("final"))
        return made


def merged(settles: list[Settle]) -> list[Settle]:
    """Join settlements that follow each other and differ only in their leases."""
    done: list[Settle] = []
    for one in settles:
        if done and done[-1].is_like(one) and len(done[-1].leases) + len(one.leases) <= MAX_LEASES:
            done[-1] = done[-1]._replace(leases=done[-1].leases + one.leases)
        else:
            done.append(one)
    return done


def error_of_call(error: grpc.RpcError) -> HookstationError:
    """The error that a failed call stands for: the broker's problem, or the connection's."""
    call: Any = error  # every error of a call is one
    for key, value in call.trailing_metadata() or ():
        if key == PROBLEM_KEY:
            try:
                return _error_of_problem(Problem.FromString(value))
            except DecodeError:
                break
    status = _BY_STATUS.get(call.code())
    detail = f"gRPC: {call.code().name}: {call.details()}"
    if status is None:
        return ConnectionFailed(detail)
    return error_of_item({"status": status, "detail": detail})


def _error_of_problem(problem: Problem) -> HookstationError:
    item = {"status": problem.status, "code": problem.code, "detail": problem.detail}
    error = error_of_item({**item, "field": problem.field} if problem.field else item)
    error.retry_after = problem.retry_after_s or None
    return error


def received_fields(found: Delivery) -> dict[str, Any]:
    """The fields of a `ReceivedMessage`, of a delivery of the stream."""
    has_lease = bool(found.lease)
    return {
        "id": found.id,
        "delivery_id": found.delivery_id,
        "lease": found.lease,
        "lease_expires_at": _instant(found.lease_expires_at) if has_lease else None,
        "attempt": found.attempt,
        "max_attempts": found.max_attempts,
        "event_type": found.event_type,
        "priority": found.priority,
        "ordering_key": found.ordering_key,
        "is_replay": found.replay,
        "accepted_at": _instant(found.accepted_at),
        "content_type": found.content_type,
        "headers": dict(found.headers),
        "body": found.body,
        "body_url": found.body_url,
    }


def _instant(stamp: Any) -> datetime:
    found: datetime = stamp.ToDatetime(timezone.utc)
    return found
