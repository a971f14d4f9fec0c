"""The stream of a worker: read in a thread of its own, ended without losing a settlement."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Callable

from hookstation_client.errors import HookstationError
from hookstation_client.grpc.stream import Settle, Stream, open_channel, received_fields
from hookstation_client.models import Settled
from hookstation_client.operations import MAX_LEASES

logger = logging.getLogger("hookstation_client.worker")

END_S = 5.0
"""Seconds for the broker to confirm the last settlements."""


class Streams:
    """A connection to a gRPC server."""

    def __init__(self, url: str) -> None:
        self._channel = open_channel(url)

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *raised: object) -> None:
        self._channel.close()

    def open(
        self,
        key: str,
        subscription: Mapping[str, Any],
        *,
        credits: int,
        take: Callable[[dict[str, Any]], None],
        lost: Callable[[Settled], None],
        changed: Callable[[], None],
    ) -> WorkerStream:
        """Begin to receive. All functions are called in a thread of the stream.

        ``take`` gets the fields of each message, ``lost`` the leases that cannot be extended.
        ``changed`` is called when `WorkerStream.is_over` has changed.
        """
        return WorkerStream(self._channel, key, subscription, credits, take, lost, changed)


class WorkerStream:
    """One stream. `failure` is set when it has ended with an error."""

    def __init__(
        self,
        channel: Any,
        key: str,
        subscription: Mapping[str, Any],
        credits: int,
        take: Callable[[dict[str, Any]], None],
        lost: Callable[[Settled], None],
        changed: Callable[[], None],
    ) -> None:
        self.failure: HookstationError | None = None
        self._ended = threading.Event()
        self._take, self._lost, self._changed = take, lost, changed
        self._stream = Stream(channel, key, subscription, credits, self._note_failed)
        self.grant, self.settle = self._stream.grant, self._stream.settle
        threading.Thread(target=self._read, name="hookstation-stream", daemon=True).start()

    @property
    def is_open(self) -> bool:
        """Whether the broker has accepted the stream."""
        return self._stream.is_open

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be settled on it any more."""
        return self._ended.is_set()

    @property
    def is_over(self) -> bool:
        """Whether no more messages come: it has ended, or the broker stops."""
        return self._ended.is_set() or self._stream.is_stopping

    def end(self) -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
        """Close the stream; returns what it has not settled: action, leases and options."""
        # First, because a stream may end before its last responses are read.
        end = time.monotonic() + END_S
        while self._stream.unsettled and time.monotonic() < end and not self._ended.wait(0.01):
            pass
        self._stream.close()
        if not self._ended.wait(END_S):
            self._stream.cancel()
        for action, leases, options in self._stream.unconfirmed():
            for start in range(0, len(leases), MAX_LEASES):
                yield action, leases[start : start + MAX_LEASES], options

    def _read(self) -> None:
        try:
            for found in self._stream.responses():
                for one in found:
                    self._take(received_fields(one))
                if self._stream.is_stopping:
                    self._changed()
        except HookstationError as error:
            self.failure = error
        except Exception as error:  # of this client: the worker goes on with the REST API
            logger.exception("the stream cannot be read")
            self.failure = HookstationError(str(error))
        finally:
            self._ended.set()
            self._changed()

    def _note_failed(self, settle: Settle, failed: dict[str, str]) -> None:
        if settle.action == "extend":
            self._lost(Settled([], failed))
            return
        for reason in failed.values():
            logger.warning("a lease ended before it was settled (%s): %s", settle.action, reason)
