"""Define the WSGI application for any server: a fast path for programs, Django for people."""

import os
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_site.settings")

from django.core.wsgi import get_wsgi_application

people = get_wsgi_application()

# Loading the views takes half a second, so do it before the first request. After the line above,
# which loads the apps.
from broker_site import urls  # noqa: E402, F401
from broker_site.server import sqs  # noqa: E402
from broker_site.server.fast_path import FastPathHandler  # noqa: E402
from channels_app.database import transactions  # noqa: E402
from channels_app.ingest.concurrency import bodies, short_turns  # noqa: E402
from delivery.cluster import children  # noqa: E402
from delivery.pull.receiving import polls  # noqa: E402
from delivery.sqs.handler import is_meant  # noqa: E402

# Callers share a commit: a response that never comes would block all of them.
transactions.limit_answer_time(transactions.REQUEST_TIMEOUT_S)
# Five eighths of the threads may wait for programs' bodies, and a quarter for people's forms
# (forms.py); the last eighth handles everything else. With fewer, fast publishers would slow down:
# of 32 threads, up to ten are between requesting a body and having it.
bodies.limit(max(1, children.web_threads() * 5 // 8))
# A waiting receive call holds a connection and a slot, but no thread (deferred.py).
polls.limit(children.long_polls())
programs = FastPathHandler()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Choose the handler by the path alone; the responses are the same."""
    if environ["PATH_INFO"].startswith(FastPathHandler.PREFIXES):
        return programs(environ, start_response)
    if is_meant(environ):
        return sqs.application(environ, start_response)
    with short_turns:
        return people(environ, start_response)
