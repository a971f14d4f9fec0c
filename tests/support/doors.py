"""Publish and receive through each of the broker's doors: REST, its batches, and gRPC."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC
from typing import Any, TypeVar

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from broker_site.server import fast_path
from channels_app.core import times
from channels_app.models import ApiKey
from delivery.grpc import publish as grpc_publish
from delivery.grpc import receive as grpc_receive
from delivery.grpc.hookstation_pb2 import (
    Delivery,
    PublishRequest,
    PublishResult,
    Settlement,
    SettlementResult,
)
from tests.support.api import Answer, Api
from tests.support.grpc_calls import ReceiveCall, TestThread, meta_of
from tests.support.pulling import Worker

T = TypeVar("T")

HEADERS = {
    "content_type": "Content-Type",
    "idempotency_key": "Idempotency-Key",
    "event_type": "Hookstation-Event-Type",
    "priority": "Hookstation-Priority",
    "deliver_at": "Hookstation-Deliver-At",
    "delay_ms": "Hookstation-Delay",
    "spread_ms": "Hookstation-Spread",
    "expires_at": "Hookstation-Expires-At",
    "ordering_key": "Hookstation-Ordering-Key",
    "producer_seq": "Hookstation-Producer-Seq",
    "body": "Content-Length",
}
"""What the headers of a single message call the fields of a batch's item."""
FIELDS = {header: field for field, header in HEADERS.items()}
DOORS = ("short", "long", "array", "lines", "grpc")
"""One message on either path of the view, batches as JSON and JSON lines, and gRPC."""
Item = Mapping[str, Any]
Result = dict[str, Any]


class Door:
    """Publishes with a key; messages and results are those of REST's batches whatever the door."""

    def __init__(self, name: str, key: ApiKey) -> None:
        self.name, self.key = name, key
        self._api = Api(key)

    def publish(self, channel: str, body: bytes | str = b"x", **options: Any) -> Result:
        """Publish one message; return its result or the problem."""
        (result,) = self.publish_all(channel, {"body": body, **options})
        return result

    def publish_all(self, channel: str, *items: Item) -> list[Result]:
        """Publish messages, together if the door can."""
        if self.name in {"short", "long"}:
            return [self._single(channel, **item) for item in items]
        if self.name == "grpc":
            return self._grpc(channel, items)
        return self._batch(channel, [_encoded(**item) for item in items])

    def _single(
        self, channel: str, body: bytes | str, headers: Item | None = None, **options: Any
    ) -> Result:
        named = {HEADERS[name]: str(value) for name, value in options.items()}
        named |= {f"Hookstation-Header-{name}": value for name, value in (headers or {}).items()}
        kind = named.pop("Content-Type", "")
        is_long = self.name == "long"
        with pytest.MonkeyPatch.context() if is_long else nullcontext() as patch:
            if patch is not None:
                patch.setattr(fast_path, "SHORT", ())
            path = f"channels/{channel}/messages"
            result = _read(self._api.call("POST", path, _raw(body), content_type=kind, **named))
        if "field" in result:
            result["field"] = FIELDS.get(result["field"], result["field"])
        return result

    def _batch(self, channel: str, items: list[Item]) -> list[Result]:
        path, kind = f"channels/{channel}/messages/batch", "application/json"
        body = json.dumps(items)
        if self.name == "lines":
            body, kind = "\n".join(map(json.dumps, items)), "application/x-ndjson"
        result = _read(self._api.call("POST", path, body.encode(), content_type=kind))
        shown: list[Result] = result.get("items", [result] * len(items))
        return shown

    def _grpc(self, channel: str, items: tuple[Item, ...]) -> list[Result]:
        requests = [_request(channel, **item) for item in items]
        results = grpc_publish.store(meta_of(self.key), requests)
        return [_shown(grpc_publish.result_of(one)) for one in results]


def _raw(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else body


def _encoded(body: bytes | str, **options: Any) -> Item:
    try:
        return {"body": _raw(body).decode(), **options}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(_raw(body)).decode(), **options}


def _read(answer: Answer) -> Result:
    result: Result = {"status": answer.status, **answer.json}
    assert answer.status < 300 or answer.is_problem
    if wait_s := answer.header("Retry-After"):
        result["retry_after_s"] = float(wait_s)
    return result


def _request(channel: str, body: bytes | str, **options: Any) -> PublishRequest:
    for name in {"deliver_at", "expires_at"} & options.keys():
        at = Timestamp()
        at.FromDatetime(times.instant(options[name]))
        options[name] = at
    return PublishRequest(channel=channel, body=_raw(body), **options)


def _shown(result: PublishResult) -> Result:
    if result.HasField("problem"):
        problem = result.problem
        return {
            name: getattr(problem, name)
            for name in ("status", "code", "detail", "field", "retry_after_s")
        }
    stored = result.published
    shown: Result = {name: getattr(stored, name) for name in ("id", "duplicate", "url")}
    return shown | {
        "status": 200 if stored.duplicate else 202,
        "matched_consumers": stored.matched_consumers,
        "due_at": times.text(stored.due_at.ToDatetime(UTC)),
    }


class _OneClaim(TestThread):
    """Lets a stream claim once, as a call of REST does."""

    _has_claimed = False

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        if work.__name__ == "_claim":
            if self._has_claimed:
                await asyncio.Future()
            self._has_claimed = True
        return await super().run(work, *arguments)


def receive_over_grpc(
    worker: Worker,
    max: int = 10,
    keys: str = "",
    **asked: Any,
) -> list[Result]:
    """Receive as `Worker.receive` does: open a stream, and break it after its first claim."""
    threads = _OneClaim()
    assert worker.api.key is not None
    key, consumer = worker.api.key, worker.consumer

    async def receive() -> list[Delivery]:
        call = ReceiveCall(threads, key, consumer, max, sticky=keys == "sticky", **asked)
        call.reads.set()
        await threads.at_rest()
        await call.end()
        return call.got

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc_receive, "WAIT_S", 0)
        return [_message(one) for one in threads.work_off(receive())]


def settle_over_grpc(
    worker: Worker, what: str, *leases: str, **more: Any
) -> tuple[list[str], dict[str, str]]:
    """Settle leases as `Worker.say` does."""
    threads, action = TestThread(), what.upper()
    assert worker.api.key is not None
    key = worker.api.key

    async def settle() -> SettlementResult:
        call = ReceiveCall(threads, key, worker.consumer, 0)
        call.reads.set()
        call.send(settlements=[Settlement(id=1, action=action, leases=leases, **more)])
        await threads.at_rest()
        await call.end()
        (result,) = call.responses[-1].results
        return result

    failed = {one.lease: one.error for one in threads.work_off(settle()).failed}
    return [lease for lease in leases if lease not in failed], failed


def _message(one: Delivery) -> Result:
    """Return a received message as REST shows it."""
    names = ("id", "attempt", "max_attempts", "event_type", "priority", "ordering_key", "replay")
    shown: Result = {name: getattr(one, name) for name in (*names, "content_type")}
    shown["headers"] = dict(one.headers)
    shown["lease"] = one.lease or None
    shown["lease_expires_at"] = None
    if one.HasField("lease_expires_at"):
        shown["lease_expires_at"] = times.text(one.lease_expires_at.ToDatetime(UTC))
    if one.body_url:
        return shown | {"body_url": one.body_url}
    try:
        return shown | {"body": one.body.decode()}
    except UnicodeDecodeError:
        return shown | {"body_base64": b64encode(one.body).decode()}
