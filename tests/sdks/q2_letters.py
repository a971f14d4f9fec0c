"""Settings and task of a django-q2 cluster over Amazon SQS; the environment sets the service."""

import os
from pathlib import Path

SECRET_KEY = "letters"
USE_TZ = True
INSTALLED_APPS = ["django_q"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE_FILE"]}
}
Q_CLUSTER = {
    "name": os.environ["QUEUE"],
    "workers": 2,
    "timeout": 60,
    "retry": 90,
    "sqs": {"aws_region": "us-east-1", "receive_message_wait_time_seconds": 5},
}


def write(number: str, folder: str) -> None:
    """Write a letter into a folder."""
    Path(folder, f"{number}.txt").touch()
