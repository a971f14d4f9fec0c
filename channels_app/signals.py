"""Define the signals by which this app notifies ``delivery``, which it does not import."""

from django.dispatch import Signal

message_accepted = Signal(use_caching=True)
"""Sent after the commit with ``channel_id: int`` and ``message_ids: Sequence[int]``. Only a hint:
if it is lost, delivery starts some milliseconds later."""
delivery_changed = Signal()
"""Sent after the commit of a change that pumps have to follow. The sender waits for the receivers
before it responds. Receivers must not raise."""
