"""Compare the broker's record of a consumer's messages with the consumer's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_REPLAYED_IDS = 1000
"""Most deliveries that one replay may name."""

_FINISHED = frozenset({"Delivered", "Dead", "Cancelled"})


@dataclass
class Reconciliation:
    """The differences between the broker's record and the consumer's own (S4-44)."""

    checked: int = 0
    """Number of messages compared."""
    missing: list[dict[str, Any]] = field(default_factory=list)
    """Messages that the broker delivered and the consumer has not seen."""
    dead: list[dict[str, Any]] = field(default_factory=list)
    """Messages whose delivery is dead and that the consumer has not seen."""
    open: int = 0
    """Number of messages whose delivery is not finished."""
    last: str | None = None
    """Pass it as ``after`` the next time: all messages up to it are finished and compared."""
    replays: list[dict[str, Any]] = field(default_factory=list)
    """Replays that were started to send the missing ones again."""

    @property
    def is_clean(self) -> bool:
        """Whether no message is missing or dead."""
        return not self.missing and not self.dead

    def add(self, item: dict[str, Any], seen: bool) -> None:
        """Add one item of the broker's list."""
        self.checked += 1
        if item["state"] not in _FINISHED:
            self.open += 1
        elif not seen and item["state"] == "Delivered":
            self.missing.append(item)
        elif not seen and item["state"] == "Dead":
            self.dead.append(item)
        if not self.open:
            self.last = item["message_id"]

    def batches(self) -> list[list[str]]:
        """Return the ids of the deliveries to replay, in batches that one replay may name."""
        ids = [item["delivery_id"] for item in self.missing + self.dead]
        return [ids[n : n + MAX_REPLAYED_IDS] for n in range(0, len(ids), MAX_REPLAYED_IDS)]


def replay_of(ids: list[str]) -> dict[str, Any]:
    """Return the arguments of a replay of these deliveries, including delivered ones."""
    return {"ids": ids, "states": ["delivered", "dead"], "reason": "reconciliation"}
