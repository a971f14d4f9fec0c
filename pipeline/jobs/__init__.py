"""List the jobs by name. Each is a module with its options and its work."""

from pipeline.execution.job import Job
from pipeline.jobs import archive, audit, erase, forecast, health, replay, triage, usage

_ALL: tuple[Job, ...] = (
    archive.JOB,
    audit.JOB,
    erase.JOB,
    forecast.JOB,
    health.JOB,
    replay.JOB,
    triage.JOB,
    usage.JOB,
)
JOBS = {job.name: job for job in _ALL}
