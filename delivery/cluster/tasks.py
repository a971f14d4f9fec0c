"""Entry points that django-q2 calls by name."""

from delivery.health import notifications
from delivery.maintenance import pipeline_runs as pipeline_processes
from delivery.maintenance import sweeps
from delivery.processes import registration


def sweep() -> int:
    """Run the due sweeps as the fallback, even if every maintenance process is dead."""
    registration.note_task()
    return sweeps.run_due()


def mail() -> int:
    """Send notification e-mails; a mail server may be slow."""
    return notifications.mail()


def pipeline() -> int:
    """Start pipeline runs that people or schedules have requested."""
    return len(pipeline_processes.turn())
