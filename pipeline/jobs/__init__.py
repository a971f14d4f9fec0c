"""Jobs: each is a module with what it takes and what it does, and stands here by its name."""

from pipeline.jobs import archive, audit, erase, forecast, health, replay, triage, usage
from pipeline.running.job import Job

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
