"""Record deaths that are to be published on a dead-letter channel (S0-77).

Called inside the transaction in which deliveries die. It creates a row for each of them, and
queue/dead_letters.py publishes the message and deletes the row in one transaction. So each death
is published exactly once, even if a process is killed.
"""

from collections.abc import Iterable
from datetime import datetime

from channels_app.registry.cache import config_cache
from delivery.models import DeadLetter


def note(dead: Iterable[tuple[int, int]], now: datetime) -> None:
    """Record deliveries that die, each with its consumer, where that has a dead-letter channel."""
    wanted = config_cache.dead_lettered()
    if not wanted:
        return
    rows = [
        DeadLetter(delivery_id=delivery_id, due_at=now)
        for delivery_id, consumer_id in dead
        if consumer_id in wanted
    ]
    # A delivery replayed and dead again before its first death was published is published once.
    DeadLetter.objects.bulk_create(rows, ignore_conflicts=True)
