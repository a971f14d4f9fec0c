"""Keep the queue (lane) of each ordering key as deliveries open and finish.

Call these functions inside the transaction that creates, queues or finishes deliveries, so that
rows and lanes agree. The guarantee: a delivery of a key is sent only after the one before it was
delivered or abandoned (S3-33). Deliveries behind the head have a ``due_at`` far in the future, so
claims skip them at no cost, however many there are (S3-07).

A lane is locked before it is read. Adding a delivery behind a head and removing that head therefore
wait for each other.
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
