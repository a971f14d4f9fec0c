"""The values that the client takes and returns."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hookstation_client.calls import given, instant, milliseconds, parse_instant
from hookstation_client.errors import HookstationError, error_of_item

Resource = dict[str, Any]
"""An object in a response of the API; docs/api.md describes its fields."""

JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"
BINARY_TYPE = "application/octet-stream"


@dataclass
class Outgoing:
    """One message to publish, for `publish_batch` and the buffer.

    The client sends a ``body`` of type ``bytes`` or ``str`` as it is, any other as JSON. ``id`` is
    the idempotency key: the broker does not store a second message with the same one. Without it
    the client generates one, so that its own retries store nothing twice. The other fields are
    those of `Hookstation.publish`.
    """

    body: Any
    event_type: str | None = None
    id: str | None = None
    ordering_key: str | None = None
    priority: int | None = None
    deliver_at: datetime | None = None
    deliver_in: float | None = None
    spread: float | None = None
    expires_at: datetime | None = None
    producer_seq: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None

    def __post_init__(self) -> None:
        """Generate the idempotency key, so that sending this object twice stores one message."""
        if self.id is None:
            self.id = str(uuid.uuid4())

    def content(self) -> tuple[bytes, str]:
        """Return the bytes of the body and their content type."""
        if isinstance(self.body, (bytes, bytearray, memoryview)):
            return bytes(self.body), self.content_type or BINARY_TYPE
        if isinstance(self.body, str):
            return self.body.encode(), self.content_type or TEXT_TYPE
        text = json.dumps(self.body, ensure_ascii=False, separators=(",", ":"))
        return text.encode(), self.content_type or JSON_TYPE

    def as_headers(self) -> dict[str, str]:
        """Return the headers of a single publish (docs/api.md, "Publish")."""
        said = given(
            **{
                "Idempotency-Key": self.id,
                "Hookstation-Event-Type": self.event_type,
                "Hookstation-Ordering-Key": self.ordering_key,
                "Hookstation-Priority": self.priority,
                "Hookstation-Deliver-At": instant(self.deliver_at),
                "Hookstation-Delay": milliseconds(self.deliver_in),
                "Hookstation-Spread": milliseconds(self.spread),
                "Hookstation-Expires-At": instant(self.expires_at),
                "Hookstation-Producer-Seq": self.producer_seq,
            }
        )
        named = {f"Hookstation-Header-{name}": value for name, value in self.headers.items()}
        return {name: str(value) for name, value in {**said, **named}.items()}

    def as_item(self) -> dict[str, Any]:
        """Return the item for a batch (docs/api.md, "Publish many at once")."""
        content, content_type = self.content()
        return given(
            **_encoded(content),
            content_type=content_type,
            idempotency_key=self.id,
            event_type=self.event_type,
            ordering_key=self.ordering_key,
            priority=self.priority,
            deliver_at=self.deliver_at,
            delay_ms=milliseconds(self.deliver_in),
            spread_ms=milliseconds(self.spread),
            expires_at=self.expires_at,
            producer_seq=self.producer_seq,
            headers=dict(self.headers) or None,
        )


@dataclass(frozen=True)
class Message:
    """A message that the broker has stored."""

    id: str
    is_duplicate: bool
    """Whether an earlier request with the same id stored it, so that this one stored nothing."""
    matched_consumers: int
    due_at: datetime | None
    url: str

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Message:
        """Parse the broker's response."""
        return cls(
            found["id"],
            found["duplicate"],
            found["matched_consumers"],
            parse_instant(found["due_at"]),
            found["url"],
        )


@dataclass(frozen=True)
class BatchResult:
    """The result for one message of a batch: the stored message, or the error."""

    message: Message | None
    error: HookstationError | None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> BatchResult:
        """Parse one item of the broker's response."""
        if found["status"] >= 300:
            return cls(None, error_of_item(found))
        return cls(Message.from_json(found), None)


@dataclass(frozen=True)
class ItemResult:
    """The result for one message of `move_many` or `cancel_many`."""

    id: str
    version: int | None
    """The new version of the message; None if ``error`` is set and nothing changed."""
    error: HookstationError | None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ItemResult:
        """Parse one item of the broker's response."""
        if found["status"] >= 300:
            return cls(found["id"], None, error_of_item(found))
        return cls(found["id"], found.get("version"), None)


@dataclass(frozen=True)
class Settled:
    """The leases that a call settled, and those that it did not settle, with the reasons.

    Reasons are ``expired``, ``unknown`` and ``too_long`` (docs/api.md, "Pull consumers").
    """

    done: list[str]
    failed: dict[str, str]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Settled:
        """Parse the broker's response."""
        return cls(found["done"], {item["lease"]: item["error"] for item in found["failed"]})


@dataclass
class ReceivedMessage:
    """A message that a pull consumer received."""

    id: str
    """The id of the message, the same each time it is received. Deduplicate by it."""
    delivery_id: str
    lease: str
    """Identifies the lease in `ack`, `nack`, `extend` and `release`. Empty with ``auto_ack``."""
    lease_expires_at: datetime | None
    attempt: int
    max_attempts: int
    event_type: str
    priority: int
    ordering_key: str
    is_replay: bool
    accepted_at: datetime | None
    content_type: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    body_url: str = field(repr=False, default="")
    """The URL of a body that is too large for the response; the client fetches it."""

    def json(self) -> Any:
        """Parse the body as JSON."""
        return json.loads(self.body)


def received_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `ReceivedMessage` from the broker's response."""
    return {
        "id": found["id"],
        "delivery_id": found["delivery_id"],
        "lease": found.get("lease") or "",
        "lease_expires_at": parse_instant(found.get("lease_expires_at")),
        "attempt": found["attempt"],
        "max_attempts": found["max_attempts"],
        "event_type": found["event_type"] or "",
        "priority": found["priority"],
        "ordering_key": found["ordering_key"] or "",
        "is_replay": found["replay"],
        "accepted_at": parse_instant(found["accepted_at"]),
        "content_type": found["content_type"],
        "headers": found["headers"] or {},
        "body": _decoded(found),
        "body_url": found.get("body_url") or "",
    }


def body_fields(body: Any, content_type: str | None = None) -> dict[str, Any]:
    """Return ``body`` or ``body_base64``, and ``content_type``, for a schedule."""
    content, kind = Outgoing(body, content_type=content_type, id="-").content()
    return {**_encoded(content), "content_type": kind}


def _encoded(content: bytes) -> dict[str, str]:
    try:
        return {"body": content.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(content).decode()}


def _decoded(found: Mapping[str, Any]) -> bytes:
    if found.get("body_base64") is not None:
        return base64.b64decode(found["body_base64"])
    return str(found.get("body") or "").encode()
