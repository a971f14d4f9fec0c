"""Record in the audit log that somebody viewed a message's body or headers, or a response.

Delivering does not count as viewing, so receiving a message writes no row.
"""

import threading
import time
from collections import OrderedDict

from channels_app import origin
from channels_app.access.principal import Principal
from channels_app.models import AuditEntry

REPEAT_S = 60.0
"""Seconds in which a repeated view is not recorded again, since programs poll."""
MAX_KEPT = 10_000
"""Maximum number of views that a process remembers for that."""

_lock = threading.Lock()
_noted: OrderedDict[tuple[str, ...], float] = OrderedDict()


def note(principal: Principal, target: str, *parts: str, team_id: int | None = None) -> None:
    """Record a view before the content is shown; if recording fails, the content is not shown.

    ``target`` is ``message:msg_...``, ``delivery:dlv_...`` or ``schedule:channel/name``; ``parts``
    name the parts viewed. ``team_id`` is the team that reads the entry, by default the principal's.
    Raises what the database raises.
    """
    key = (principal.actor, target, origin.current.get(), *parts)
    now = time.monotonic()
    with _lock:
        if now - _noted.get(key, float("-inf")) < REPEAT_S:
            return
    action = f"{target.partition(':')[0]}.open"
    readers, seen = team_id or principal.team_id, {"opened": list(parts)}
    AuditEntry.record(principal.actor, action, target, team_id=readers, after=seen)
    with _lock:
        _noted[key] = now
        _noted.move_to_end(key)
        if len(_noted) > MAX_KEPT:
            _noted.popitem(last=False)


def forget() -> None:
    """Clear the memory of recent views, as in a new process."""
    with _lock:
        _noted.clear()
