"""Note that somebody opened what a message holds: its body, its headers, what was answered to it.

Delivering is no opening, so receiving costs no row.
"""

import threading
import time
from collections import OrderedDict

from channels_app import origin
from channels_app.models import AuditEntry

REPEAT_S = 60.0
"""Who opens the same again within so many seconds is not noted again: programs poll."""
MAX_KEPT = 10_000
"""Openings that a process remembers for that."""

_lock = threading.Lock()
_noted: OrderedDict[tuple[str, ...], float] = OrderedDict()


def note(actor: str, target: str, *parts: str, team_id: int | None = None) -> None:
    """Write it down before it is shown: what cannot be written down is not shown.

    ``target`` is ``message:msg_...``, ``delivery:dlv_...`` or ``schedule:channel/name``; ``parts``
    say what of it. Raises what the database raises.
    """
    key = (actor, target, origin.current.get(), *parts)
    now = time.monotonic()
    with _lock:
        if now - _noted.get(key, float("-inf")) < REPEAT_S:
            return
    action = f"{target.partition(':')[0]}.open"
    AuditEntry.record(actor, action, target, team_id=team_id, after={"opened": list(parts)})
    with _lock:
        _noted[key] = now
        _noted.move_to_end(key)
        if len(_noted) > MAX_KEPT:
            _noted.popitem(last=False)


def forget() -> None:
    """Note each opening again, as a new process does."""
    with _lock:
        _noted.clear()
