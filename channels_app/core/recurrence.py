"""Compute when a schedule fires, validate its fields, and log its last occurrences (S4-06).

Cron expressions have the syntax of Debian's cron, with an optional first field for seconds. cronsim
computes the calendar; this module maps wall times to instants (decision 21):

- An expression with fixed hours and minutes fires once on each matching day. A wall time that a
  clock change skips fires at the instant of the change; one that occurs twice, the first time.
- An expression whose hour or minute begins with ``*`` fires whenever the wall clock shows a
  matching time: not in the skipped hour, and twice in the repeated one.
"""

import os
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from channels_app.core import times

RulesVersion: TypeAlias = tuple[int, int, int] | None
"""Identifies a zone's file: inode, size and time of change. None: it has no file."""
MIN_INTERVAL_MS = 100
MAX_MS = 366 * 86_400_000
MAX_CRON_LENGTH = 200
MAX_ZONE_LENGTH = 64
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_TICK = timedelta(microseconds=1)
MAX_SHIFT = timedelta(hours=26)
"""Most that new rules of a zone move a wall time: across the date line."""
_FIRST = datetime(2000, 1, 1)
_LAST = datetime(9000, 1, 1, tzinfo=UTC)
FIRE_ONCE, FIRE_ALL, SKIP = "fire_once", "fire_all", "skip"
GRACE = timedelta(seconds=60)
"""An occurrence up to this late counts as on time, so that a restart does not skip one."""
MAX_SKIPPED = 2000
"""Limit of occurrences per call: after a week, a schedule of 1 s has missed 600,000."""
ALLOW, SKIP_IF_UNDELIVERED = "allow", "skip_if_undelivered"
FIRED = "fired"
RUN = "run"
"""Started by hand, outside the timetable."""
MISSED = "missed"
OVERLAPPED = "overlapped"
REFUSED = "refused"
RESULTS = (FIRED, RUN, MISSED, OVERLAPPED, REFUSED)
MAX_KEPT = 10
MAX_DETAIL_LENGTH = 300
_versions_seen: dict[str, RulesVersion] = {}


@dataclass(frozen=True, slots=True)
class Timetable:
    """When something recurs. Either ``cron`` or ``every_ms`` is set."""

    cron: str = ""
    every_ms: int | None = None
    zone: str = "UTC"
    """IANA name; ``every_ms`` ignores it."""
    anchor: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    """Start of the intervals of ``every_ms`` without ``start_at``."""
    start_at: datetime | None = None
    """No occurrence before it; the instant itself may be one."""
    end_at: datetime | None = None
    """No occurrence after it; the instant itself may be one."""

    def after(self, instant: datetime) -> datetime | None:
        """The first occurrence later than ``instant``; None if there is none.

        Raises ValueError for an expression or a zone that ``check_cron`` or ``check_zone`` rejects.
        """
        if self.start_at is not None:
            instant = max(instant, self.start_at - _TICK)
        if self.every_ms is not None:
            occurrence: datetime | None = self._multiple_after(instant)
        else:
            occurrence = _Cron(self.cron, check_zone(self.zone)).after(instant)
        if occurrence is None or (self.end_at is not None and occurrence > self.end_at):
            return None
        return occurrence

    def nearest(self, instant: datetime) -> datetime | None:
        """The occurrence nearest to a stored one, usually itself; the later of two.

        It differs if the rules of the zone have changed since ``instant`` was computed. None if
        there is no occurrence near or after it. Raises ValueError as `after` does.
        """
        if self.every_ms is not None or self.zone == "UTC":
            return instant  # independent of any rules
        following = self.after(instant - _TICK)
        if following == instant:
            return instant
        gap = MAX_SHIFT if following is None else min(MAX_SHIFT, following - instant)
        low, high = instant - gap, instant
        if not self._is_before(low, instant):
            return following
        while high - low > _SECOND / 2:
            middle = low + (high - low) / 2
            low, high = (middle, high) if self._is_before(middle, instant) else (low, middle)
        return self.after(low)

    def _is_before(self, instant: datetime, end: datetime) -> bool:
        """Whether an occurrence lies between the two."""
        following = self.after(instant)
        return following is not None and following < end

    def upcoming(self, instant: datetime, count: int) -> list[datetime]:
        """The next occurrences later than ``instant``, ``count`` at most."""
        occurrences: list[datetime] = []
        while len(occurrences) < count and (following := self.after(instant)) is not None:
            occurrences.append(following)
            instant = following
        return occurrences

    def wall(self, instant: datetime) -> str:
        """An instant as the local wall clock shows it: ``Mon 2027-03-29 09:00:00+02:00``."""
        if self.every_ms is not None:
            return instant.astimezone(UTC).isoformat(" ", "milliseconds")
        local = instant.astimezone(check_zone(self.zone))
        return f"{local:%a} {local.isoformat(' ', 'seconds')}"

    def words(self) -> str:
        """A description in words: ``At 09:00 on Monday through Friday, Europe/Paris``."""
        if self.every_ms is not None:
            return f"Every {_period(self.every_ms)}"
        try:
            rhythm = CronSim(self.cron, _FIRST).explain()
        except (CronSimError, ValueError, IndexError):
            rhythm = self.cron
        return f"{rhythm}, {self.zone}"

    def _multiple_after(self, instant: datetime) -> datetime:
        assert self.every_ms is not None
        anchor = self.start_at or self.anchor
        anchor -= timedelta(microseconds=anchor.microsecond % 1000)
        if anchor < (self.start_at or anchor):
            anchor += timedelta(milliseconds=1)  # never before start_at
        period = timedelta(milliseconds=self.every_ms)
        return anchor + ((instant - anchor) // period + 1) * period


def check_cron(text: str) -> str:
    """Normalize the blanks between the fields. Raises ValueError for an invalid expression."""
    expression = " ".join(text.split())
    if len(expression) > MAX_CRON_LENGTH:
        raise ValueError(f"At most {MAX_CRON_LENGTH} characters are stored.")
    if len(expression.split(" ")) not in (5, 6) or not expression.isascii():
        raise ValueError(
            "Five fields are needed (minute hour day month weekday), or six with seconds in front."
        )
    try:
        next(CronSim(expression, _FIRST))
    except StopIteration:
        raise ValueError("This date does not occur in any year.") from None
    except (CronSimError, ValueError, AssertionError, OverflowError) as error:
        raise ValueError(f"This is not a cron expression: {error}.") from None
    return expression


def check_zone(name: str) -> tzinfo:
    """The time zone of that IANA name. Raises ValueError with a sentence."""
    # Lower-case names are other files: the machine's local time, zones with leap seconds.
    if len(name) <= MAX_ZONE_LENGTH and name.isascii() and name[:1].isupper():
        try:
            return zone(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ValueError("A time zone is an IANA name like Europe/Paris or UTC.")


def zone_fault(name: str) -> str | None:
    """What is wrong with the name of a time zone; None if it is one."""
    try:
        check_zone(name)
    except ValueError as error:
        return str(error)
    return None


class _Cron:
    """Iterates one expression in one zone."""

    def __init__(self, expression: str, zone: tzinfo) -> None:
        self._expression = expression
        self._zone = zone
        minute, hour = expression.split()[-5:-3]
        self._is_free = minute.startswith("*") or hour.startswith("*")

    def after(self, instant: datetime) -> datetime | None:
        """The first occurrence later than ``instant``."""
        if instant >= _LAST:
            return None
        return self._free_after(instant) if self._is_free else self._fixed_after(instant)

    def _fixed_after(self, instant: datetime) -> datetime | None:
        # In a repeated hour, skip the wall times that have fired when they first occurred.
        for wall in self._walls(self._wall(instant)):
            occurrence = self._instant(wall)
            if occurrence > instant:
                return occurrence
        return None

    def _free_after(self, instant: datetime) -> datetime | None:
        low, wall = instant, self._wall(instant)
        while (next_wall := next(self._walls(wall), None)) is not None:
            occurrence = (next_wall - self._offset(low)).replace(tzinfo=UTC)
            if occurrence - low > _DAY:
                # Nothing in between matches, whatever the clock changes: jump near it first.
                low = occurrence - _DAY / 2
                wall = self._wall(low)
                continue
            turn = self._turn(low, occurrence)
            if turn is None:
                return occurrence
            low, wall = turn, self._wall(turn) - _SECOND
        return None

    def _walls(self, wall: datetime) -> Iterator[datetime]:
        """Matching wall times later than this one."""
        return iter(CronSim(self._expression, wall))

    def _instant(self, wall: datetime) -> datetime:
        """The instant at which the wall clock first shows this time, or skips it."""
        first = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        if self._wall(first) == wall:
            return first
        before = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        return self._turn(min(before, first), max(before, first)) or first

    def _turn(self, low: datetime, high: datetime) -> datetime | None:
        """The first whole second in (``low``, ``high``] with another UTC offset than ``low``.

        Both are at most a day apart; in that time the offset changes at most once.
        """
        offset = self._offset(low)
        if self._offset(high) == offset:
            return None
        old, new = int(low.timestamp()), int(high.timestamp())
        while new - old > 1:
            middle = (old + new) // 2
            if self._offset(datetime.fromtimestamp(middle, UTC)) == offset:
                old = middle
            else:
                new = middle
        return datetime.fromtimestamp(new, UTC)

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self._zone).utcoffset() or timedelta(0)

    def _wall(self, instant: datetime) -> datetime:
        return instant.astimezone(self._zone).replace(tzinfo=None, fold=0)


@dataclass(frozen=True, slots=True)
class Turn:
    """What to do for one schedule now."""

    occurrence: datetime | None
    """The occurrence to fire now; None: none."""
    missed: int
    """Occurrences before it that are skipped."""
    next_at: datetime | None
    """The next occurrence to check, possibly due already; None: there is none."""


def turn(
    next_at: datetime,
    now: datetime,
    misfire: str,
    after: Callable[[datetime], datetime | None],
) -> Turn:
    """The oldest occurrence from ``next_at`` on that is due and still fires.

    An occurrence that is more than GRACE late is a misfire. With ``fire_all`` it fires all the
    same, with ``skip`` it does not, and with ``fire_once`` only the last misfire fires.
    """
    at: datetime | None = next_at
    for missed in range(MAX_SKIPPED):
        if at is None or at > now:
            return Turn(None, missed, at)
        following = after(at)
        if _happens(at, following, now, misfire):
            return Turn(at, missed, following)
        at = following
    return Turn(None, MAX_SKIPPED, at)


@dataclass(frozen=True, slots=True)
class Content:
    """A message of a schedule, parsed and validated like a published message."""

    body: bytes = field(repr=False)
    content_type: str = ""
    event_type: str = ""
    priority: int | None = None
    """None: the producer's default."""
    ordering_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def line(
    result: str,
    at: datetime,
    *,
    occurrence_at: datetime | None = None,
    message: str | None = None,
    count: int = 1,
    detail: str = "",
) -> dict[str, Any]:
    """One line: decided ``at``; stands for ``count`` occurrences from ``occurrence_at`` on."""
    return {
        "result": result,
        "occurrence_at": times.text(occurrence_at) if occurrence_at else None,
        "at": times.text(at),
        "message": message,
        "count": count,
        "detail": detail[:MAX_DETAIL_LENGTH],
    }


def kept(recent: Sequence[dict[str, Any]], *lines: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest MAX_KEPT lines, newest first; ``lines`` are new, oldest first."""
    return [*reversed(lines), *recent][:MAX_KEPT]


def key(name: str, occurrence_at: datetime) -> str:
    """The idempotency key of an occurrence's message: a repeated firing stores nothing twice."""
    return f"schedule:{name}:{round(occurrence_at.timestamp() * 1000)}"


def run_key(name: str, number: int) -> str:
    """The same for an occurrence that was started by hand."""
    return f"schedule:{name}:run:{number}"


def zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name, by the rules that are installed now.

    Python reads a zone once for each process, so that a process that runs on while the rules are
    updated keeps the old ones. Raises ZoneInfoNotFoundError and ValueError as `ZoneInfo` does.
    """
    current = ZoneInfo(name)
    version = zone_version(name)
    if _versions_seen.setdefault(name, version) != version:
        _versions_seen[name] = version
        ZoneInfo.clear_cache(only_keys=[name])
        current = ZoneInfo(name)
    return current


def zone_version(name: str) -> RulesVersion:
    """Return what identifies the rules of a zone: another version means that they may differ.

    ``name`` is one that `ZoneInfo` accepts.
    """
    for folder in (*zoneinfo.TZPATH, *_package()):
        try:
            status = os.stat(os.path.join(folder, name))
        except OSError:
            continue
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


@lru_cache(maxsize=1024)
def _period(milliseconds: int) -> str:
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if milliseconds % size == 0:
            number = milliseconds // size
            return unit if number == 1 else f"{number:,} {unit}s"
    if milliseconds % 1000 == 0:
        return "second" if milliseconds == 1000 else f"{milliseconds // 1000:,} seconds"
    return f"{milliseconds:,} ms"


def _happens(at: datetime, following: datetime | None, now: datetime, misfire: str) -> bool:
    if misfire == FIRE_ALL or now - at <= GRACE:
        return True
    return misfire == FIRE_ONCE and (following is None or now - following <= GRACE)


@lru_cache(maxsize=1)
def _package() -> tuple[str, ...]:
    """Return the folder of the package `tzdata`, which `ZoneInfo` reads after the search path."""
    spec = find_spec("tzdata")
    return (str(Path(spec.origin).with_name("zoneinfo")),) if spec and spec.origin else ()
