"""A Celery application on SQS as its documentation has it; nothing of it knows Hookstation."""

import os
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery(
    broker="sqs://", broker_transport_options={"region": "us-east-1", "wait_time_seconds": 5}
)
app.conf.task_default_queue = os.environ["QUEUE"]


@app.task(bind=True, max_retries=2, acks_late=True)  # type: ignore[untyped-decorator]  # untyped
def note(self: Any, folder: str, text: str) -> None:
    """Write a file; the first try fails."""
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    Path(folder, text).write_text("done")
