"""The WSGI application for any server: a short path for programs, a long one for people."""

import os
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_site.settings")

from django.core.wsgi import get_wsgi_application

people = get_wsgi_application()

# Loading the views takes half a second: before the first request, not in it. After the line above,
# which loads the apps.
from broker_site import sqs, urls  # noqa: E402, F401
from broker_site.fast_path import FastPathHandler  # noqa: E402
from channels_app import transactions  # noqa: E402
from channels_app.api.concurrency import bodies  # noqa: E402
from delivery.runtime import children  # noqa: E402
from delivery.runtime.receiving import polls  # noqa: E402
from delivery.sqs.handler import is_meant  # noqa: E402

# Callers share a commit: one answer that never came would hold them all.
transactions.limit_answer_time(transactions.REQUEST_TIMEOUT_S)
# So many of the threads may wait for programs' bodies, and a quarter for people's forms (forms.py);
# an eighth answers whatever comes. Fewer would slow down who publishes fast: of 32 threads that do
# nothing else up to ten are between asking for a body and holding it.
bodies.limit(max(1, children.web_threads() * 5 // 8))
# Who waits for messages holds a connection and a place, and no thread (later.py).
polls.limit(children.long_polls())
programs = FastPathHandler()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Choose the path by the address alone; both give the same answers."""
    if environ["PATH_INFO"].startswith(FastPathHandler.PREFIXES):
        return programs(environ, start_response)
    if is_meant(environ):
        return sqs.application(environ, start_response)
    return people(environ, start_response)
