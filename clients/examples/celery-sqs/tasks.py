"""A shop's tasks, for Celery over Amazon SQS. The environment determines the service."""

import os
from pathlib import Path

from celery import Celery

app = Celery("shop", broker="sqs://")
app.conf.update(
    task_default_queue=os.environ.get("QUEUE", "shop-tasks"),
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "region": "us-east-1",
        "wait_time_seconds": 5,
        # Seconds in which a task must end, or another worker receives it.
        "visibility_timeout": int(os.environ.get("VISIBILITY_S", "300")),
    },
    # Acknowledge after the task, so that a killed worker's task runs again.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)


class NoStamps(Exception):
    """The shop has run out of stamps."""


@app.task(name="shop.send_letter", bind=True, max_retries=5)
def send_letter(self, number: int, outbox: str) -> None:
    """Write a letter into a folder. Each tenth letter needs a second try."""
    try:
        if number % 10 == 0 and self.request.retries == 0:
            raise NoStamps(number)
    except NoStamps as error:
        raise self.retry(exc=error, countdown=1) from error
    Path(outbox, f"{number}.txt").write_text(f"Dear customer {number}, your order is packed.\n")
