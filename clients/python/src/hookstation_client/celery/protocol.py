"""Encode tasks as messages: the parts of Celery's protocol 2 as one JSON document."""

from __future__ import annotations

import json
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any


@dataclass
class TaskMessage:
    """One call of a task."""

    task: str
    id: str | None
    """None in a message of a schedule; then the id of the message is the task's id."""
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    retries: int = 0
    eta: str | None = None
    expires: str | None = None
    ignore_result: bool | None = None
    """None: use the task's option."""
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    group_index: int | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    """Custom headers of the sender (``self.request.headers``)."""
    callbacks: list[Any] = field(default_factory=list)
    errbacks: list[Any] = field(default_factory=list)
    chain: list[Any] = field(default_factory=list)
    """The remaining calls, the next one first."""
    chord: dict[str, Any] | None = None
    """The chord whose header contains this task: ``group``, ``size`` and ``body``."""

    def encode(self) -> bytes:
        """Return the body of the message."""
        return encode({"headers": self._headers(), "body": self._body()})

    @classmethod
    def decode(cls, content: bytes) -> TaskMessage:
        """Decode a message body. Raises ValueError if it contains no task."""
        try:
            found = decode(content)
            args, kwargs, embed = found["body"]
            return cls(args=args, kwargs=kwargs, **found["headers"], **embed)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"The message contains no task: {error!r}") from error

    def _headers(self) -> dict[str, Any]:
        names = ("task", "id", "retries", "eta", "expires", "ignore_result", "root_id")
        more = ("parent_id", "group", "group_index", "headers")
        return {name: getattr(self, name) for name in names + more}

    def _body(self) -> list[Any]:
        names = ("callbacks", "errbacks", "chain", "chord")
        return [self.args, self.kwargs, {name: getattr(self, name) for name in names}]


def new_id() -> str:
    """Return an id for a new task or group."""
    return str(uuid.uuid4())


def derived_id(parent: str, *parts: object) -> str:
    """Return the id of a call that a task sends, the same if the task runs again."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, ":".join([parent, *map(str, parts)])))


def encode(value: Any) -> bytes:
    """Encode as JSON, with the additional types of Celery's JSON."""
    text = json.dumps(value, default=_tagged, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def decode(content: bytes) -> Any:
    """Decode the result of `encode`; tuples and sets become lists, as in Celery."""
    return json.loads(content, object_hook=_untagged)


_READ: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "bytes": lambda text: b64decode(text),
}


def _tagged(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return {"__type__": "bytes", "__value__": b64encode(value).decode()}
    for kind, name in ((datetime, "datetime"), (date, "date"), (time, "time")):
        if isinstance(value, kind):
            return {"__type__": name, "__value__": value.isoformat()}
    if isinstance(value, (Decimal, uuid.UUID)):
        return {"__type__": type(value).__name__.lower(), "__value__": str(value)}
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _untagged(found: dict[str, Any]) -> Any:
    if found.keys() == {"__type__", "__value__"} and found["__type__"] in _READ:
        return _READ[found["__type__"]](found["__value__"])
    return found
