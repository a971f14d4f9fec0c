"""The driver of the Python client, blocking or, with ``--asyncio``, asynchronous.

With ``HOOKSTATION_GRPC_URL`` it receives and settles over gRPC streams.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hookstation_client import (
    AsyncHookstation,
    Hookstation,
    HookstationError,
    Outgoing,
    Settled,
    SignatureError,
    verify,
)
from hookstation_client.models import ReceivedMessage
from lines import Refused, bytes_of, encoded, serve


class Operations:
    """The operations of the protocol, by the client's methods.

    ``_finished`` completes operations that return the client's own results: it awaits them for the
    asynchronous client.
    """

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks

    def create_channel(self, channel: str, settings: dict[str, Any]) -> Any:
        return self.hooks.create_channel(channel, **settings)

    def register(self, channel: str, consumer: str, settings: dict[str, Any]) -> Any:
        return self.hooks.register(channel, consumer, **settings)

    def publish(
        self, channel: str, body: str | None = None, body_base64: str | None = None, **said: Any
    ) -> Any:
        said.setdefault("content_type", "application/json")
        return self.hooks.publish(channel, bytes_of(body, body_base64), **said)

    def publish_batch(self, channel: str, messages: list[dict[str, Any]]) -> Any:
        return self.hooks.publish_batch(channel, [Outgoing(**message) for message in messages])

    def list_messages(self, channel: str) -> Any:
        return self.hooks.messages(channel)

    def message(self, id: str) -> Any:
        return self.hooks.message(id)

    def move(self, id: str, **said: Any) -> Any:
        return self.hooks.move(id, **said)

    def cancel(self, id: str) -> Any:
        return self.hooks.cancel(id)

    def receive(self, channel: str, consumer: str, **said: Any) -> Any:
        return self.hooks.receive_batch(channel, consumer, **said)

    def ack(self, lease: str) -> Any:
        return self.hooks.ack(lease)

    def nack(self, lease: str, **said: Any) -> Any:
        return self.hooks.nack(lease, **said)

    def extend(self, lease: str, seconds: int) -> Any:
        return self.hooks.extend(lease, seconds)

    def release(self, lease: str, **said: Any) -> Any:
        return self.hooks.release(lease, **said)

    def dead_letters(self, channel: str, consumer: str) -> Any:
        return self.hooks.dead_letters(channel, consumer)

    def replay_delivery(self, id: str) -> Any:
        return self.hooks.replay_delivery(id)

    def put_schedule(self, channel: str, schedule: str, settings: dict[str, Any]) -> Any:
        return self.hooks.schedules(channel).put(schedule, **settings)

    def get_schedule(self, channel: str, schedule: str) -> Any:
        return self.hooks.schedules(channel).get(schedule)

    def delete_schedule(self, channel: str, schedule: str) -> Any:
        return self.hooks.schedules(channel).delete(schedule)

    def verify(self, secret: str, headers: dict[str, str], body_base64: str) -> Any:
        return verify(secret, headers, bytes_of(None, body_base64))


QUIET_S = 0.3
"""Seconds without a message after which a receive over a stream ends."""


class OverStreams(Operations):
    """Receives and settles over gRPC streams, each operation over one of its own."""

    def __init__(self, hooks: Hookstation) -> None:
        super().__init__(hooks)
        from hookstation_client.grpc.stream import open_channel

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
        from hookstation_client.grpc.stream import received_fields

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
                message.body = self.hooks.body(message.id)
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
            return getattr(self.hooks, action)(token, **given)
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
        from hookstation_client.grpc.stream import Stream

        return Stream(self._connection, self.hooks.key, subscription, credits, **options)


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


def shown(message: Any) -> dict[str, Any]:
    names = ("id", "lease", "attempt", "event_type", "ordering_key", "priority", "headers")
    found = {name: getattr(message, name) for name in (*names, "content_type")}
    return {**found, "body_base64": encoded(message.body)}


def result_of(result: Any) -> dict[str, Any]:
    if result.error is not None:
        return {"error": result.error.code}
    return {"id": result.message.id, "duplicate": result.message.is_duplicate}


def settled(result: Any) -> dict[str, Any]:
    for code in result.failed.values():
        raise Refused(code=code, status=200, detail="The lease is lost.")
    return {}


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "publish": lambda message: {"id": message.id, "duplicate": message.is_duplicate},
    "publish_batch": lambda results: {"results": [result_of(one) for one in results]},
    "list_messages": lambda items: {"ids": [item["id"] for item in items]},
    "receive": lambda messages: {"messages": [shown(message) for message in messages]},
    **dict.fromkeys(("ack", "nack", "extend", "release"), settled),
    "dead_letters": lambda items: {"ids": [item["message_id"] for item in items]},
    "delete_schedule": lambda _: {},
    "verify": lambda id: {"id": id},
}
"""Convert the client's result to the protocol's answer; other results are answered unchanged."""


async def _finished(operation: Callable[..., Any], **arguments: Any) -> Any:
    result = operation(**arguments)
    if inspect.isasyncgen(result) or hasattr(result, "__aiter__"):
        return [item async for item in result]
    return await result if inspect.isawaitable(result) else result


def answered(name: str, run: Callable[..., Any], **arguments: Any) -> Any:
    try:
        result = run(**arguments)
        if inspect.isgenerator(result):
            result = list(result)
        return ANSWERS.get(name, lambda found: found)(result)
    except HookstationError as error:
        raise Refused(
            code=error.code, status=error.status, detail=error.detail, fields=list(error.fields)
        ) from error
    except SignatureError as error:
        raise Refused(code="bad_signature", status=0, detail=str(error)) from error


def main(is_async: bool) -> None:
    loop = asyncio.new_event_loop()
    hooks: Any = AsyncHookstation() if is_async else Hookstation()
    has_streams = bool(os.environ.get("HOOKSTATION_GRPC_URL"))
    operations = OverStreams(hooks) if has_streams else Operations(hooks)
    runners: dict[str, Callable[..., Any]] = {}
    for name in vars(Operations):
        if name.startswith("_"):
            continue
        run = getattr(operations, name)
        if is_async:
            step = functools.partial(_finished, run)
            run = functools.partial(
                lambda step, **said: loop.run_until_complete(step(**said)), step
            )
        runners[name] = functools.partial(answered, name, run)
    name = "python-asyncio" if is_async else "python-grpc" if has_streams else "python"
    serve(name, runners)
    if is_async:
        loop.run_until_complete(hooks.close())
    else:
        hooks.close()
    loop.close()


if __name__ == "__main__":
    main("--asyncio" in sys.argv)
