"""Choosing: which rows are due, one short range per consumer and level, without locking any."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from channels_app.models import raw
from delivery.models import Delivery
from delivery.rules.fair_sharing import LEVELS, Row, by_age, share_out
from delivery.rules.sharding import ALONE, Share

TABLE = Delivery._meta.db_table


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """How much of one consumer's work to take."""

    consumer_id: int
    limit: int
    lease_ms: int
    owner: int
    """Whose lease it will be: a pump's generation, or a pull worker."""
    oldest_first: bool = False
    """Ignore priority this time: the guard against starvation (S0-42)."""
    spare: int = 0
    """Rows behind those, in case that others hold some of them."""
    levels: Sequence[int] = LEVELS
    """Priorities to look at, where it is known which have something due."""
    may_take_more: bool = False
    """Whether the limit is a share, and more might be taken now."""
    share: Share = ALONE
    """Which rows are rather taken by other pumps. A preference and no lock: where nothing better is
    due, they are taken, too, and a pump that does not keep up is helped."""

    @property
    def look(self) -> int:
        """How many rows of each priority to look at: one more than are wanted of all owners'."""
        return (self.limit + self.spare) * len(self.share.owners) + 1


@dataclass(frozen=True, slots=True)
class Candidates:
    """Ids of due rows, by consumer, in the order in which they are to be taken."""

    first: dict[int, list[int]]
    spare: dict[int, list[int]]
    drained: frozenset[int]
    """Consumers that had no more due rows than were asked for."""
    left: dict[int, dict[int, datetime]] = field(default_factory=dict)
    """When the earliest row that was not chosen is due, by consumer and priority."""


def candidates_sql(wants: Sequence[ClaimRequest], now: datetime) -> tuple[str, list[Any]]:
    """The query that finds what is due: one range per consumer and level, each in index order."""
    terms = [(want.consumer_id, level, want.look) for want in wants for level in want.levels]
    sql = raw.union(
        f"SELECT id, consumer_id, priority, due_at FROM {TABLE} "
        f"WHERE consumer_id = {consumer_id:d} AND priority = {level:d} AND due_at <= %s "
        f"ORDER BY due_at, id LIMIT {limit:d}"
        for consumer_id, level, limit in terms
    )
    return sql, [raw.text(now)] * len(terms)


def choose(wants: Sequence[ClaimRequest], now: datetime, most: int | None = None) -> Candidates:
    """The highest levels first, or the oldest where the guard says so; a want per consumer.

    ``most`` limits all of them together (`rules.fair_sharing`).
    """
    found: dict[int, list[Row]] = {want.consumer_id: [] for want in wants}
    for delivery_id, consumer_id, priority, due_at in raw.read(*candidates_sql(wants, now)):
        found[consumer_id].append((-priority, due_at, delivery_id))
    due = dict(found)
    for want in wants:
        if not want.share.is_all:
            found[want.consumer_id] = list(_preferred(want, due[want.consumer_id]))
        found[want.consumer_id].sort(key=by_age if want.oldest_first else None)
    if most is None:
        chosen = {want.consumer_id: found[want.consumer_id][: want.limit] for want in wants}
    else:
        chosen = share_out(
            found,
            {want.consumer_id: want.limit for want in wants},
            {want.consumer_id for want in wants if want.may_take_more},
            most,
            oldest_first=any(want.oldest_first for want in wants),
        )
    first: dict[int, list[int]] = {}
    spare: dict[int, list[int]] = {}
    left: dict[int, dict[int, datetime]] = {}
    for want in wants:
        mine, rows = chosen[want.consumer_id], found[want.consumer_id]
        if mine:
            first[want.consumer_id] = [row[2] for row in mine]
            spare[want.consumer_id] = [row[2] for row in rows[want.limit :][: want.spare]]
        if len(mine) < len(due[want.consumer_id]):
            left[want.consumer_id] = _earliest(set(due[want.consumer_id]).difference(mine))
    return Candidates(first, spare, frozenset(found.keys() - left.keys()), left)


def _preferred(want: ClaimRequest, rows: Sequence[Row]) -> Iterator[Row]:
    """As many of each priority as are wanted; others' only where our own are not enough."""
    by_level: dict[int, list[Row]] = {}
    for row in rows:
        by_level.setdefault(row[0], []).append(row)
    for level in by_level.values():
        level.sort(key=lambda row: (not want.share.prefers(row[2]), row))
        yield from level[: want.limit + want.spare + 1]


def _earliest(rows: set[Row]) -> dict[int, datetime]:
    earliest: dict[int, Any] = {}
    for priority, due_at, _ in rows:
        if -priority not in earliest or due_at < earliest[-priority]:
            earliest[-priority] = due_at
    return {priority: _instant(due_at) for priority, due_at in earliest.items()}


def _instant(value: datetime | str) -> datetime:
    """A raw column as an instant: SQLite hands text out, MySQL naive UTC."""
    instant = datetime.fromisoformat(value) if isinstance(value, str) else value
    return instant.replace(tzinfo=UTC)
