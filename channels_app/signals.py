"""The one signal: a hint to delivery that something was stored. Losing it costs milliseconds."""

from django.dispatch import Signal

message_accepted = Signal()
"""Sent after the commit with ``channel_id: int`` and ``message_ids: Sequence[int]`` of it."""
