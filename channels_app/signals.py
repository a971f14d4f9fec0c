"""Signals to delivery, which channels do not know: something was stored, or was changed."""

from django.dispatch import Signal

message_accepted = Signal()
"""Sent after the commit with ``channel_id: int`` and ``message_ids: Sequence[int]`` of it. A hint:
losing it costs milliseconds."""
delivery_changed = Signal()
"""Sent after the commit of a change that pumps have to follow: whoever made it goes on, and
answers, when the receivers return. They raise nothing."""
