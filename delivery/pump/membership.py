"""One pump's membership: its heartbeat, the configuration it has applied, and what it owns.

It gives two guarantees. A pump begins no request unless it has checked the configuration within the
last ``FENCE_S`` seconds, so a change never waits longer for an unresponsive pump
(pump/confirmation.py). And a pump that joins claims nothing before the others know of it, so
that no consumer has two pumps.
"""

import time

from channels_app.models import ConfigVersion
from delivery.conf import conf
from delivery.processes import registration
from delivery.processes.registration import PumpRegistration, Replaced
from delivery.processes.wakeups import wakeup_sender
from delivery.pump.assignment import Assignment
from delivery.pump.confirmation import FENCE_S

AWAY_S = 3.0
"""After this long without a heartbeat others may have treated it as dead, so it joins again."""
JOIN_POLL_S = 0.02
"""Seconds between two checks whether all others know of this pump."""


class Membership:
    """The membership of the pump that holds a slot. Times are `time.monotonic`."""

    def __init__(self, held: PumpRegistration, assignment: Assignment) -> None:
        self._held = held
        self._assignment = assignment
        self._beaten_at = float("-inf")
        self._followed = 0
        self._is_behind = True
        self._joining: int | None = None
        """Configuration version at which all others know of this pump; None once they do."""
        self._join_until = 0.0
        self.next_beat = 0.0
        self.fence_at = 0.0
        """No request begins after this time without another heartbeat."""

    @property
    def may_begin(self) -> bool:
        """Whether requests may begin with the assignment's current configuration."""
        return time.monotonic() < self.fence_at and not self._assignment.is_behind()

    def beat(self, in_flight: int) -> bool:
        """Send a heartbeat and apply changes; return whether anything changed.

        If so, the caller gives back deliveries that may no longer be sent, and then calls
        `confirm`. Raises registration.Replaced.
        """
        began = time.monotonic()
        self.next_beat = began + registration.BEAT_S
        self._show(in_flight)
        if began - self._beaten_at > AWAY_S:
            self.join()
        self._is_behind = self._assignment.refresh() or self._is_behind
        self._beaten_at = began
        if not self._is_behind:
            self.fence_at = began + FENCE_S
        return self._is_behind

    def confirm(self, in_flight: int) -> None:
        """Confirm that no request begins any more with configuration before the last `beat`."""
        self._followed = self._assignment.number
        self._show(in_flight)
        self._is_behind = False
        self.fence_at = self._beaten_at + FENCE_S

    def join(self) -> None:
        """Make all other pumps refresh their list of pumps; a single pump need not wait."""
        if all(slot.generation == self._held.generation for slot in registration.living()):
            return
        ConfigVersion.bump()
        self._joining = ConfigVersion.current()
        self._join_until = time.monotonic() + FENCE_S
        if conf().wake:
            wakeup_sender.changed()

    def owns(self) -> bool:
        """Whether all others know which consumers this pump owns, so that it may claim."""
        if self._joining is None:
            return True
        unaware = registration.behind(self._joining).keys() - {self._held.generation}
        if unaware and time.monotonic() < self._join_until:
            return False
        self._joining = None
        self._assignment.take_over()
        return True

    def rest_s(self) -> float:
        """Return the seconds until this pump must act without a notification."""
        ticks = time.monotonic()
        waits = [self.next_beat - ticks]
        if self._joining is not None:
            waits.append(JOIN_POLL_S)
        return min(waits)

    def _show(self, in_flight: int) -> None:
        if not registration.beat(self._held, in_flight, self._followed):
            raise Replaced
