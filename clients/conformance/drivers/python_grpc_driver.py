"""The driver of the Python client over gRPC: it receives and settles over streams."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from hookstation_client import Hookstation, HookstationError, Settled
from hookstation_client.grpc.stream import Stream, open_channel, received_fields
from hookstation_client.models import ReceivedMessage
from python_driver import Operations, main

QUIET_S = 0.3
"""Seconds without a message after which a receive over a stream ends."""


class OverStreams(Operations):
    """Receives and settles over gRPC streams, each operation over one of its own."""

    def __init__(self, hooks: Hookstation) -> None:
        super().__init__(hooks)
        self._connection = open_channel(hooks.grpc)
        self._consumer: dict[str, Any] = {}
        """Channel and consumer of the last receive that was not refused."""

    def receive(
        self,
        channel: str,
        consumer: str,
        max: int = 10,
        wait: float = 0,
        lease: float = 30,
        **said: Any,
    ) -> Any:
        names = {"channel": channel, "consumer": consumer}
        stream = self._open({**names, "lease_s": lease, **said}, credits=max)
        found: list[Any] = []
        read = read_by_thread(stream.responses)
        end = time.monotonic() + wait
        while len(found) < max:
            patience_s = QUIET_S if found else end - time.monotonic()
            try:
                part = read(timeout=patience_s if patience_s > QUIET_S else QUIET_S)
            except queue.Empty:
                break
            if part is None:
                break
            found += part
        stream.close()
        # The broker may have sent more before it saw that.
        while (part := read(timeout=None)) is not None:
            found += part
        self._consumer = names
        messages = [ReceivedMessage(**received_fields(one)) for one in found]
        for message in messages:
            if message.body_url:
                message.body = self._hooks.body(message.id)
        return messages

    def ack(self, lease: str) -> Any:
        return self._settle("ack", lease)

    def nack(self, lease: str, **said: Any) -> Any:
        return self._settle("nack", lease, **said)

    def extend(self, lease: str, seconds: int) -> Any:
        return self._settle("extend", lease, lease=seconds)

    def release(self, lease: str, **said: Any) -> Any:
        return self._settle("release", lease, **said)

    def _settle(self, action: str, token: str, **said: Any) -> Any:
        if not self._consumer:  # another process received it
            given = {"seconds": said["lease"]} if action == "extend" else said
            return getattr(self._hooks, action)(token, **given)
        failed: dict[str, str] = {}
        stream = self._open(self._consumer, on_failed=lambda _, reasons: failed.update(reasons))
        stream.settle(action, token, **said)
        stream.close()
        for _ in stream.responses():
            pass
        if stream.unconfirmed():
            raise HookstationError("The stream ended before the settlement was confirmed.")
        return Settled([] if failed else [token], failed)

    def _open(self, subscription: dict[str, Any], credits: int = 0, **options: Any) -> Any:
        return Stream(self._connection, self._hooks.key, subscription, credits, **options)


def read_by_thread(responses: Callable[[], Any]) -> Callable[..., Any]:
    """Read a stream in a thread.

    The function that is returned waits for the next part: a list of messages, or None at the end.
    Raises queue.Empty after ``timeout`` seconds, and the error that ended the stream.
    """
    parts: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        try:
            for part in responses():
                parts.put(part)
            parts.put(None)
        except HookstationError as error:
            parts.put(error)

    def following(timeout: float | None) -> Any:
        part = parts.get(timeout=timeout)
        if isinstance(part, HookstationError):
            raise part
        return part

    threading.Thread(target=read, daemon=True).start()
    return following


if __name__ == "__main__":
    client = Hookstation()
    main("python-grpc", client, OverStreams(client))
