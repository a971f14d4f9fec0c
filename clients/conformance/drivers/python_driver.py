"""The driver of the Python client, blocking or, with ``--asyncio``, asynchronous."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from hookstation_client import (
    AsyncHookstation,
    Hookstation,
    HookstationError,
    Outgoing,
    SignatureError,
    verify,
)
from lines import Refused, bytes_of, encoded, serve


class Operations:
    """The operations of the protocol, by the client's methods.

    ``_finished`` completes operations that return the client's own results: it awaits them for the
    asynchronous client.
    """

    def __init__(self, hooks: Any) -> None:
        self._hooks = hooks

    def create_channel(self, channel: str, settings: dict[str, Any]) -> Any:
        return self._hooks.create_channel(channel, **settings)

    def register(self, channel: str, consumer: str, settings: dict[str, Any]) -> Any:
        return self._hooks.register(channel, consumer, **settings)

    def publish(
        self, channel: str, body: str | None = None, body_base64: str | None = None, **said: Any
    ) -> Any:
        said.setdefault("content_type", "application/json")
        return self._hooks.publish(channel, bytes_of(body, body_base64), **said)

    def publish_batch(self, channel: str, messages: list[dict[str, Any]]) -> Any:
        return self._hooks.publish_batch(channel, [Outgoing(**message) for message in messages])

    def list_messages(self, channel: str) -> Any:
        return self._hooks.messages(channel)

    def message(self, id: str) -> Any:
        return self._hooks.message(id)

    def move(self, id: str, **said: Any) -> Any:
        return self._hooks.move(id, **said)

    def cancel(self, id: str) -> Any:
        return self._hooks.cancel(id)

    def receive(self, channel: str, consumer: str, **said: Any) -> Any:
        return self._hooks.receive_batch(channel, consumer, **said)

    def ack(self, lease: str) -> Any:
        return self._hooks.ack(lease)

    def nack(self, lease: str, **said: Any) -> Any:
        return self._hooks.nack(lease, **said)

    def extend(self, lease: str, seconds: int) -> Any:
        return self._hooks.extend(lease, seconds)

    def release(self, lease: str, **said: Any) -> Any:
        return self._hooks.release(lease, **said)

    def dead_letters(self, channel: str, consumer: str) -> Any:
        return self._hooks.dead_letters(channel, consumer)

    def replay_delivery(self, id: str) -> Any:
        return self._hooks.replay_delivery(id)

    def put_schedule(self, channel: str, schedule: str, settings: dict[str, Any]) -> Any:
        return self._hooks.schedules(channel).put(schedule, **settings)

    def get_schedule(self, channel: str, schedule: str) -> Any:
        return self._hooks.schedules(channel).get(schedule)

    def delete_schedule(self, channel: str, schedule: str) -> Any:
        return self._hooks.schedules(channel).delete(schedule)

    def verify(self, secret: str, headers: dict[str, str], body_base64: str) -> Any:
        return verify(secret, headers, bytes_of(None, body_base64))


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


def main(name: str, hooks: Any, operations: Operations) -> None:
    """Serve the operations of a client under its name, and close it."""
    loop = asyncio.new_event_loop()
    is_async = isinstance(hooks, AsyncHookstation)
    runners: dict[str, Callable[..., Any]] = {}
    for operation in dir(operations):
        run = getattr(operations, operation)
        if operation.startswith("_") or not callable(run):
            continue
        if is_async:
            step = functools.partial(_finished, run)
            run = functools.partial(
                lambda step, **said: loop.run_until_complete(step(**said)), step
            )
        runners[operation] = functools.partial(answered, operation, run)
    serve(name, runners)
    if is_async:
        loop.run_until_complete(hooks.close())
    else:
        hooks.close()
    loop.close()


if __name__ == "__main__":
    client: Any = AsyncHookstation() if "--asyncio" in sys.argv else Hookstation()
    main("python-asyncio" if "--asyncio" in sys.argv else "python", client, Operations(client))
