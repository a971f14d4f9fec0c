"""Jobs: each is a module with what it takes and what it does, and stands here by its name."""

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
