"""What django-q2 calls: entry points by name, each a line."""

from delivery.runtime import sweeps


def sweep() -> int:
    """The second belt: run the sweeps that are due even if every steward is dead."""
    return sweeps.run_due()
