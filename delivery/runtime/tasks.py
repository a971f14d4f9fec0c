"""What django-q2 calls: entry points by name, each a line."""

from delivery.runtime import notices, slots, sweeps
from delivery.runtime import pipeline as pipeline_processes


def sweep() -> int:
    """The second belt: run the sweeps that are due even if every steward is dead."""
    slots.note_task()
    return sweeps.run_due()


def mail() -> int:
    """Send what owners are to be told; a mail server may take its time."""
    return notices.mail()


def pipeline() -> int:
    """Start the pipeline's runs that were asked for, by people or by the clock."""
    return len(pipeline_processes.turn())
