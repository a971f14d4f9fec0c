"""Compare what the broker says a consumer was given with what the consumer has seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_REPLAYED_IDS = 1000
"""Deliveries that one replay may name."""

_FINISHED = frozenset({"Delivered", "Dead", "Cancelled"})


@dataclass
class Reconciliation:
    """The differences between the broker's record and the consumer's own (S4-44)."""

    checked: int = 0
    """Messages that were compared."""
    missing: list[dict[str, Any]] = field(default_factory=list)
    """Delivered as the broker says, and not seen by the consumer."""
    dead: list[dict[str, Any]] = field(default_factory=list)
    """Given up, and not seen by the consumer."""
    open: int = 0
    """Not finished yet."""
    last: str | None = None
    """Pass it as ``after`` the next time: everything up to it is finished and was compared."""
    replays: list[dict[str, Any]] = field(default_factory=list)
    """What was started to send the missing ones again."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is missing and nothing is dead."""
        return not self.missing and not self.dead

    def add(self, item: dict[str, Any], seen: bool) -> None:
        """Take one item of the broker's list into account."""
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
        """The ids of the deliveries to be replayed, as many as a replay may name."""
        ids = [item["delivery_id"] for item in self.missing + self.dead]
        return [ids[n : n + MAX_REPLAYED_IDS] for n in range(0, len(ids), MAX_REPLAYED_IDS)]


def replay_of(ids: list[str]) -> dict[str, Any]:
    """The arguments of the replay that sends these deliveries again, delivered ones too."""
    return {"ids": ids, "states": ["delivered", "dead"], "reason": "reconciliation"}
