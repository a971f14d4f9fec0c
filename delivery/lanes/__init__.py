"""Lanes: how deliveries of one key queue up, for every step that opens or finishes some.

Called inside the transaction that makes, queues or finishes deliveries, so that rows and lanes
never disagree. What is promised, exactly: a delivery of a key is sent after the one before it was
delivered, or gave up (S3-33). Those behind the head have a ``due_at`` that never comes: a claim
does not see them, however many they are (S3-07).

A lane is locked first and looked at then: who adds one behind a head waits for who takes the head
away, and the other way round.
"""

from delivery.lanes.entering import Entered, NewEntry, enter, enter_rows
from delivery.lanes.expired import expired_behind
from delivery.lanes.leaving import (
    ClosingEntry,
    advance,
    block,
    ending,
    is_stalled,
    leave,
    leave_rows,
    releasing,
)
from delivery.lanes.new_deliveries import in_turn, new_deliveries
from delivery.lanes.step_back import step_back
from delivery.lanes.tables import Locked, lock, paused

__all__ = [
    "ClosingEntry",
    "Entered",
    "Locked",
    "NewEntry",
    "advance",
    "block",
    "ending",
    "enter",
    "enter_rows",
    "expired_behind",
    "in_turn",
    "is_stalled",
    "leave",
    "leave_rows",
    "lock",
    "new_deliveries",
    "paused",
    "releasing",
    "step_back",
]
