"""What django-q2 calls: entry points by name, each a line."""

from delivery.runtime import notifications, registration, sweeps
from delivery.runtime import pipeline as pipeline_processes


def sweep() -> int:
    """The fallback run: run the sweeps that are due even if every maintenance process is dead."""
    registration.note_task()
    return sweeps.run_due()


def mail() -> int:
    """Send what owners are to be told; a mail server may take its time."""
    return notifications.mail()


def pipeline() -> int:
    """Start the pipeline's runs that were asked for, by people or by the clock."""
    return len(pipeline_processes.turn())
