"""A Django project with django-q2 on SQS, and the commands that a test runs in it."""

import os
import sys
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command


def note(folder: str, text: str) -> None:
    """What the cluster does."""
    Path(folder, text).write_text("done")


def main(command: str, *arguments: str) -> None:
    """Set the project up, and run the cluster or queue a task."""
    settings.configure(
        SECRET_KEY="not secret here",
        INSTALLED_APPS=["django_q"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"]}
        },
        USE_TZ=True,
        Q_CLUSTER={
            "name": os.environ["QUEUE"],
            "workers": 1,
            "timeout": 60,
            "retry": 90,
            "sqs": {
                "aws_region": "us-east-1",
                "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
                "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
                "receive_message_wait_time_seconds": 5,
            },
        },
    )
    django.setup()
    if command == "cluster":
        call_command("migrate", verbosity=0)
        call_command("qcluster")
    else:
        from django_q.tasks import async_task  # noqa: PLC0415 - after the settings

        async_task("tests.e2e.sqs.django_q_project.note", *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
