"""Schedules: the rows that make django-q2 call our tasks."""

from django_q.models import Schedule

SCHEDULES = {
    "hookstation sweeps": ("delivery.runtime.tasks.sweep", 1),
    "hookstation pipeline": ("delivery.runtime.tasks.pipeline", 1),
}
"""Name: (task, minutes between runs)."""


def ensure() -> None:
    """Make the schedules true; harmless to repeat."""
    for name, (task, minutes) in SCHEDULES.items():
        Schedule.objects.update_or_create(
            name=name,
            defaults={
                "func": task,
                "schedule_type": Schedule.MINUTES,
                "minutes": minutes,
                "repeats": -1,
            },
        )
