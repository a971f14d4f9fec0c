"""Lines of a JSONL file as the batch endpoint's items."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from channels_app.conf import MAX_BATCH_ITEMS

BATCH_BYTES = 8 * 1024 * 1024
"""Of one request, unless a single message is larger; half of what the broker takes by default."""
FIELDS = (
    *("body", "body_base64", "content_type", "event_type", "priority", "idempotency_key"),
    *("ordering_key", "deliver_at", "delay_ms", "expires_at", "headers"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what to send, or why it cannot be sent."""

    number: int
    """From 1."""
    item: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    """Bytes of the item as it is sent, about."""
    fault: str = ""


@dataclass(slots=True)
class Reader:
    """Reads lines one by one: memory does not grow with the file."""

    content_type: str = "application/json"
    """For messages that bring none."""
    idempotent: bool = False
    """Give each message that brings no key one made of its line and its place."""
    unused: Counter[str] = field(default_factory=Counter)
    """Fields that mean nothing here, and how often they came."""

    def read(self, lines: Iterable[bytes]) -> Iterator[Line]:
        """Every line that is not blank."""
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                continue
            try:
                line = self._line(number, text.strip())
            except RecursionError:
                line = Line(number, fault="This JSON has too many levels.")
            yield line

    def _line(self, number: int, text: bytes) -> Line:
        try:
            given = json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            return Line(number, fault=f"This is not JSON: {error}.")
        if not isinstance(given, dict):
            return Line(number, fault="Each line is a JSON object.")
        item = {name: given[name] for name in FIELDS if given.get(name) is not None}
        if "event" in given:
            if "event_type" in item:
                return Line(number, fault="Give either event or event_type, not both.")
            item["event_type"] = given["event"]
        self.unused.update(given.keys() - {*FIELDS, "event"})
        if "body" not in item and "body_base64" not in item:
            return Line(number, fault="There is no body.")
        if not isinstance(item.get("body", ""), str):
            # JSON that stands in the line as such, and not as text.
            item["body"] = json.dumps(item["body"], ensure_ascii=False, separators=(",", ":"))
        item.setdefault("content_type", self.content_type)
        if self.idempotent and "idempotency_key" not in item:
            item["idempotency_key"] = hashlib.sha256(b"%d:%b" % (number, text)).hexdigest()
        return Line(number, item, len(json.dumps(item)))


def _refuse(constant: str) -> None:
    """Python reads these; JSON has none of them."""
    raise ValueError(f"{constant} is no value")


def batches(
    lines: Iterable[Line], *, items: int = MAX_BATCH_ITEMS, size: int = BATCH_BYTES
) -> Iterator[list[Line]]:
    """Lines in requests of at most ``items`` messages and about ``size`` bytes."""
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
