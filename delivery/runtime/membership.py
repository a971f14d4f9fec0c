"""Membership: one pump among the others: its heartbeat, what it follows, and what it owns by now.

Two promises rest on it. A pump begins nothing unless it has looked at the configuration within the
last ``FENCE_S`` seconds, so that whoever changed it need not wait longer for one that is not heard
(runtime/confirmation.py). And a pump that joins takes nothing before the others know of it, so that
no consumer has two pumps.
"""

import time

from channels_app.models import DirectoryVersion
from delivery.conf import conf
from delivery.runtime import registration
from delivery.runtime.assignment import Assignment
from delivery.runtime.confirmation import FENCE_S
from delivery.runtime.registration import PumpRegistration, Replaced
from delivery.runtime.wakeups import wakeup_sender

AWAY_S = 3.0
"""After so long without a heartbeat, others may have taken it for dead: it joins again."""
JOIN_POLL_S = 0.02
"""Between two looks at whether all others know."""


class Membership:
    """The place of the pump that holds a slot, seen by itself. Instants are `time.monotonic`."""

    def __init__(self, held: PumpRegistration, assignment: Assignment) -> None:
        self._held = held
        self._roster = assignment
        self._beaten_at = float("-inf")
        self._followed = 0
        self._is_behind = True
        self._joining: int | None = None
        """Number of the configuration by which all others know of this pump."""
        self._join_until = 0.0
        self.next_beat = 0.0
        self.fence_at = 0.0
        """Nothing begins from here on without another beat."""

    @property
    def may_begin(self) -> bool:
        """Whether requests may begin by what the assignment knows now."""
        return time.monotonic() < self.fence_at and not self._roster.is_behind()

    def beat(self, in_flight: int) -> bool:
        """Say that we live and look at what changed.

        True when something did: what may not begin any more is then to be given back, and
        `confirm` says so. Raises slots.Replaced.
        """
        began = time.monotonic()
        self.next_beat = began + registration.BEAT_S
        self._show(in_flight)
        if began - self._beaten_at > AWAY_S:
            self.join()
        self._is_behind = self._roster.refresh() or self._is_behind
        self._beaten_at = began
        if not self._is_behind:
            self.fence_at = began + FENCE_S
        return self._is_behind

    def confirm(self, in_flight: int) -> None:
        """Say that nothing begins any more by what was before the last `beat`."""
        self._followed = self._roster.number
        self._show(in_flight)
        self._is_behind = False
        self.fence_at = self._beaten_at + FENCE_S

    def join(self) -> None:
        """Let all others look who is here; alone, there is nobody to wait for."""
        if all(slot.generation == self._held.generation for slot in registration.living()):
            return
        DirectoryVersion.bump()
        self._joining = DirectoryVersion.current()
        self._join_until = time.monotonic() + FENCE_S
        if conf().wake:
            wakeup_sender.changed()

    def owns(self) -> bool:
        """Whether all others know what is ours by now, so that we may take of it."""
        if self._joining is None:
            return True
        unaware = registration.behind(self._joining).keys() - {self._held.generation}
        if unaware and time.monotonic() < self._join_until:
            return False
        self._joining = None
        self._roster.take_over()
        return True

    def rest_s(self) -> float:
        """Seconds until something is to be done without being told."""
        ticks = time.monotonic()
        waits = [self.next_beat - ticks]
        if self._joining is not None:
            waits.append(JOIN_POLL_S)
        return min(waits)

    def _show(self, in_flight: int) -> None:
        if not registration.beat(self._held, in_flight, self._followed):
            raise Replaced
