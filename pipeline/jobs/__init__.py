"""Jobs: each is a module with what it takes and what it does, and stands here by its name."""

from pipeline.job import Job

_ALL: tuple[Job, ...] = ()
JOBS = {job.name: job for job in _ALL}
