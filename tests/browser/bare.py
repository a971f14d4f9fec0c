"""Make an operator and nothing else, or, with ``failed``, failed runs of jobs.

`conftest.write` runs this module as a process with the broker's environment: the tests themselves
open no database.
"""

import sys

from django.contrib.auth.models import User

from channels_app.database import clock
from delivery.models import PipelineRun
from pipeline.contract.jobs import JOBS
from tests.browser.person import OPERATOR, PASSWORD

ERROR = (
    "java.sql.SQLException: (conn=17) Access denied for user 'pipeline'@'10.0.3.%' to database "
    "'hookstation'\nafter three tries"
)
LOG = "\n".join(f"04:1{place}:07 reading deliveries, part {place} of 8" for place in range(4))


def failures() -> None:
    """Make a failed run of each job."""
    now = clock.now()
    for job in JOBS:
        times = dict.fromkeys(("requested_at", "started_at", "heartbeat_at", "finished_at"), now)
        PipelineRun.objects.create(
            **{"job": job, "state": "failed", "requested_by": "schedule", **times},
            **{"host": "worker-2.eu-north.example", "pid": 4711, "error": ERROR, "log": LOG},
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["failed"]:
        failures()
    else:
        User.objects.create_superuser(OPERATOR, password=PASSWORD)
