"""Define which rows belong to a segment: the condition shared by planning, export and checks.

The broker's pruning has the same condition in its own code (delivery/maintenance/archived.py);
tests compare the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.broker import tables
from pipeline.broker.database import Database
from pipeline.settings import Settings

CHANNELS = "channels_app_channel"
DELIVERIES, MESSAGES = "deliveries", "messages"
"""Kinds of segments."""


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Instants before which rows must have finished."""

    finished: datetime
    dead: datetime

    def as_json(self) -> dict[str, str]:
        """Return the form that a segment stores."""
        return {"finished": self.finished.isoformat(), "dead": self.dead.isoformat()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Cutoff":
        """Read the form that a segment stores."""
        return cls(
            datetime.fromisoformat(stored["finished"]), datetime.fromisoformat(stored["dead"])
        )


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """Cutoffs of the installation, and of channels with their own."""

    cutoff: Cutoff
    channels: Mapping[int, Cutoff]

    @property
    def latest(self) -> datetime:
        """Rows made from this instant on are not eligible in any channel."""
        everyone = (self.cutoff, *self.channels.values())
        return max(at for cutoff in everyone for at in (cutoff.finished, cutoff.dead))

    def as_json(self) -> dict[str, Any]:
        """Return the form that a segment stores."""
        own = {str(key): cutoff.as_json() for key, cutoff in self.channels.items()}
        return {**self.cutoff.as_json(), "channels": own}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Cutoffs":
        """Read the form that a segment stores."""
        own = {int(key): Cutoff.from_json(each) for key, each in stored["channels"].items()}
        return cls(Cutoff.from_json(stored), own)


def cutoffs(database: Database, settings: Settings) -> Cutoffs:
    """Compute the current cutoffs, to the second; a segment keeps them."""
    now = database.now().replace(microsecond=0)
    days, dead_days = settings.retention_days, settings.dead_retention_days

    def cutoff(finished: int | None, dead: int | None) -> Cutoff:
        return Cutoff(
            now - timedelta(days=finished or days), now - timedelta(days=dead or dead_days)
        )

    own = database.read(
        f"SELECT id, retention_days, dead_retention_days FROM {CHANNELS} "
        "WHERE retention_days IS NOT NULL OR dead_retention_days IS NOT NULL ORDER BY id"
    )
    return Cutoffs(cutoff(None, None), {int(key): cutoff(*each) for key, *each in own})


def where(kind: str, low: int, high: int, limits: Cutoffs) -> str:
    """Return the condition for a segment's rows, over its table's FROM clause (broker/tables.py).

    Contains only the program's own numbers and instants. It uses constants rather than a CASE by
    channel, because not all databases treat an instant in an expression as text.
    """
    if kind == DELIVERIES:
        return f"{_between(low, high)} AND ({_by_channel('d', limits, _finished)})"
    return (
        f"m.id >= {low:d} AND m.id < {high:d} AND m.state <> 'accepted' "
        f"AND ({_by_channel('m', limits, _accepted)}) AND NOT EXISTS "
        "(SELECT 1 FROM delivery_delivery x WHERE x.message_id = m.id) AND NOT EXISTS "
        # Restored from the lake, which still has it.
        "(SELECT 1 FROM delivery_restoredmessage y WHERE y.message_id = m.id)"
    )


def not_in_segment(low: int, high: int, limits: Cutoffs) -> str:
    """Return the condition for deliveries of the same key range that are not in the segment."""
    return f"{_between(low, high)} AND ({_by_channel('d', limits, _finished)}) IS NOT TRUE"


def _between(low: int, high: int) -> str:
    return f"d.id >= {low:d} AND d.id < {high:d}"


def _finished(cutoff: Cutoff) -> str:
    return (
        f"(d.state IN ('delivered', 'cancelled') AND d.finished_at < {_literal(cutoff.finished)} "
        f"OR d.state = 'dead' AND d.finished_at < {_literal(cutoff.dead)})"
    )


def _accepted(cutoff: Cutoff) -> str:
    return f"m.id < {tables.first_key(cutoff.finished):d}"


def _by_channel(prefix: str, limits: Cutoffs, condition: Any) -> str:
    """Combine channels with equal cutoffs into one alternative."""
    groups: dict[Cutoff, list[int]] = {}
    for key, cutoff in limits.channels.items():
        groups.setdefault(cutoff, []).append(key)
    if not groups:
        return str(condition(limits.cutoff))
    other_channels = f"{prefix}.channel_id NOT IN ({_listed(limits.channels)}) AND "
    return " OR ".join(
        [
            other_channels + condition(limits.cutoff),
            *(
                f"{prefix}.channel_id IN ({_listed(keys)}) AND {condition(cutoff)}"
                for cutoff, keys in groups.items()
            ),
        ]
    )


def _listed(keys: Any) -> str:
    return ", ".join(f"{key:d}" for key in keys)


def _literal(at: datetime) -> str:
    """Format an instant in whole seconds, which every database compares with a column."""
    return f"'{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}'"
