"""A Celery application over Amazon SQS; the environment sets the service."""

import os
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("letters", broker="sqs://")
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    broker_transport_options={"region": "us-east-1", "wait_time_seconds": 5},
)


@app.task(bind=True)  # type: ignore[untyped-decorator]  # Celery has no types
def write(self: Any, number: str, folder: str) -> None:
    """Write a letter into a folder. Letter 10 needs a second attempt."""
    if number == "10" and self.request.retries == 0:
        raise self.retry(countdown=1)
    Path(folder, f"{number}.txt").touch()
