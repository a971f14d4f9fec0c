"""Convert lines of a JSONL file to items of the batch endpoint."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from channels_app.conf import MAX_BATCH_ITEMS

BATCH_BYTES = 8 * 1024 * 1024
"""Maximum bytes of a request, unless a single message is larger; half of the broker's default
limit."""
FIELDS = (
    *("body", "body_base64", "content_type", "event_type", "priority", "idempotency_key"),
    *("ordering_key", "deliver_at", "delay_ms", "expires_at", "headers"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the item to send, or its error."""

    number: int
    """Number of the line, from 1."""
    item: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    """Approximate bytes of the item on the wire."""
    fault: str = ""


@dataclass(slots=True)
class Reader:
    """Reads lines one by one, so that memory does not grow with the file."""

    content_type: str = "application/json"
    """Content type of messages without one."""
    idempotent: bool = False
    """Add an idempotency key, made from the line and its number, to each message without one."""
    unused: Counter[str] = field(default_factory=Counter)
    """Unknown fields with their number of occurrences."""

    def read(self, lines: Iterable[bytes]) -> Iterator[Line]:
        """Yield every line that is not blank."""
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                continue
            try:
                line = self._line(number, text.strip())
            except RecursionError:
                line = Line(number, fault="This JSON is nested too deeply.")
            yield line

    def _line(self, number: int, text: bytes) -> Line:
        try:
            given = json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            return Line(number, fault=f"This is not JSON: {error}.")
        if not isinstance(given, dict):
            return Line(number, fault="Each line must be a JSON object.")
        item = {name: given[name] for name in FIELDS if given.get(name) is not None}
        if "event" in given:
            if "event_type" in item:
                return Line(number, fault="Give either event or event_type, not both.")
            item["event_type"] = given["event"]
        self.unused.update(given.keys() - {*FIELDS, "event"})
        if "body" not in item and "body_base64" not in item:
            return Line(number, fault="There is no body.")
        if not isinstance(item.get("body", ""), str):
            # A JSON value in the line, as opposed to text.
            item["body"] = json.dumps(item["body"], ensure_ascii=False, separators=(",", ":"))
        item.setdefault("content_type", self.content_type)
        if self.idempotent and "idempotency_key" not in item:
            item["idempotency_key"] = hashlib.sha256(b"%d:%b" % (number, text)).hexdigest()
        return Line(number, item, len(json.dumps(item)))


def batches(
    lines: Iterable[Line], *, items: int = MAX_BATCH_ITEMS, size: int = BATCH_BYTES
) -> Iterator[list[Line]]:
    """Yield batches of at most ``items`` messages and about ``size`` bytes."""
    batch: list[Line] = []
    weight = 0
    for line in lines:
        if batch and (len(batch) == items or weight + line.size > size):
            yield batch
            batch, weight = [], 0
        batch.append(line)
        weight += line.size
    if batch:
        yield batch


def _refuse(constant: str) -> None:
    """Refuse constants that Python accepts and JSON lacks."""
    raise ValueError(f"{constant} is not a JSON value")
