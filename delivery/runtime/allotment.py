"""Allotment: how much each consumer may take now of what its pump can still send."""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from channels_app import keystore
from channels_app.directory import Signer, directory
from channels_app.rules.encryption import KeyMissing, Unreadable
from delivery.conf import conf
from delivery.rules.taker import Leave, Taker
from delivery.runtime.line import Line
from delivery.runtime.roster import Roster
from delivery.steps import acknowledge
from delivery.steps.claim import Want

logger = logging.getLogger(__name__)

DISPATCH_BATCH = 200
"""Most messages of one fan-out."""
DISPATCH_LEAST = 16
"""Messages that a fan-out may take even if nobody has room for so many at once."""
FULL_S = 0.005
CLAIM_BATCH = 100
"""Most rows of one consumer in one claim."""
RESERVED = 8
"""One part in so many of a pump's requests is for consumers that have nothing on their way."""

Rooms = list[tuple[Line, int]]
"""Consumers, and how many deliveries of each may be taken."""


class Allotment:
    """Shares a pump's free requests out among its consumers."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._eaters: list[int] = []
        """Consumers of the last fan-out."""
        self.full_until = 0.0
        """Until when (`time.monotonic`) the fan-out waits for an answer to make room."""

    def appetite(self, now: datetime) -> int:
        """How many messages to fan out now: as many as the hungriest consumer takes at birth.

        What is queued instead has to be claimed, and so has all that comes after it until none is
        left. 0 for a moment while those who have nothing waiting are full: not for longer, the
        others wait for their messages.
        """
        lines = [line for key in self._eaters if (line := self._roster.lines.get(key))]
        rooms = [line.capacity(now) for line in lines if not line.has_due(now)]
        ticks = time.monotonic()
        if rooms and not any(rooms):
            self.full_until = self.full_until or ticks + FULL_S
            return 0 if ticks < self.full_until else DISPATCH_BATCH
        self.full_until = 0.0
        return min(DISPATCH_BATCH, max(*rooms, DISPATCH_LEAST)) if rooms else DISPATCH_BATCH

    def wants(self, owner: int, now: datetime, free: int) -> list[Want]:
        """What to claim of what is due, where ``free`` more requests may be open."""
        rooms: Rooms = []
        for line in self._roster.agenda.awake(now):
            if (room := self._room(line, line.room(now))) > 0:
                rooms.append((line, room))
            else:
                self._roster.agenda.rest(line)
        return [
            Want(line.view.id, limit, _lease_ms(line), owner, line.oldest_first)
            for line, limit in _shares(rooms, free)
        ]

    def taker(self, owner: int, now: datetime, free: Callable[[], int]) -> Taker:
        """Who takes what a fan-out makes, within the room that there is then."""
        return Taker(owner, now, lambda counts: self.leave(counts, now, free()))

    def leave(self, counts: Mapping[int, int], now: datetime, free: int) -> dict[int, Leave]:
        """What to take of new deliveries as they are made; ``counts`` says how many there are.

        A consumer that has something due already gets none: its claim goes by priority.
        """
        self._eaters = list(counts)
        lines = self._roster.lines
        mine = [lines[consumer_id] for consumer_id in counts if consumer_id in lines]
        rooms = [
            (line, room)
            for line in mine
            if not line.has_due(now) and (room := self._room(line, line.capacity(now))) > 0
        ]
        others = sum(line.has_due(now) for line in self._roster.agenda.awake(now))
        return {
            line.view.id: Leave(limit, _lease_ms(line))
            for line, limit in _shares(rooms, free, others)
        }

    def wake_at(self, free: int) -> float | None:
        """When the next consumer that may take something wants to be looked at, Unix seconds."""
        return self._roster.agenda.wake_at(unserved=free <= _reserve()) if free > 0 else None

    def signer(self, line: Line) -> Signer | Unreadable:
        """The consumer's opened secrets, or why they cannot be opened: then it is left alone."""
        try:
            if line.view.ack:
                keystore.signing_key(acknowledge.PURPOSE)  # of the address that it may call
            return directory.signer(line.view.id)
        except KeyMissing as error:
            self._roster.miss(error.key_id)
            self._roster.suspend(line)
            return error
        except Unreadable as error:
            logger.error("secrets of consumer %s cannot be opened: %s", line.view.client_id, error)
            self._roster.suspend(line)
            return error

    def _room(self, line: Line, room: int) -> int:
        # What we cannot sign is not taken either: it would wear out its deliveries.
        return room if room > 0 and isinstance(self.signer(line), Signer) else 0


def _shares(rooms: Rooms, free: int, others: int = 0) -> Rooms:
    """How much each may take beside so many ``others``."""
    if free <= 0 or not rooms:
        return []
    common = free - _reserve()
    if common <= 0:
        # However many hang, one that answers still finds room, and comes again and again.
        return [(line, 1) for line, _ in rooms if not line.in_flight][:free]
    share = max(1, common // (len(rooms) + others))
    # Nobody takes more than half of what is left, so that those who come later find some, too.
    most = max(1, min(share, CLAIM_BATCH, common // 2))
    return [(line, min(room, most)) for line, room in rooms[:common]]


def _reserve() -> int:
    return conf().pump_in_flight // RESERVED


def _lease_ms(line: Line) -> int:
    return line.view.timeout_ms + conf().lease_grace_ms
