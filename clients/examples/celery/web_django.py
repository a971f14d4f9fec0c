"""A web application as a worker: the broker sends each task as a request (README.md)."""

import sys

from after import app
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    SECRET_KEY="an example", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1", "localhost"]
)
urlpatterns = app.django_urls("tasks")

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
