"""Define the WSGI application for any server, with a door for each kind of client."""

import os
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_site.settings")

from django.core.wsgi import get_wsgi_application

pages = get_wsgi_application()

# Loading the views takes half a second, so do it before the first request. After the line above,
# which loads the apps.
from broker_site import urls  # noqa: E402, F401
from broker_site.server import security  # noqa: E402
from broker_site.server.fast_path import FastPathHandler  # noqa: E402
from broker_site.server.lingering import lingering  # noqa: E402
from channels_app.api import fast_path  # noqa: E402
from channels_app.database import transactions  # noqa: E402
from channels_app.ingest.concurrency import bodies, short_turns  # noqa: E402
from delivery.cluster import children  # noqa: E402
from delivery.pull.receiving import polls  # noqa: E402
from delivery.sqs import handler  # noqa: E402
from delivery.sqs.handler import HandlerResponse  # noqa: E402

# Callers share a commit: a response that never comes would block all of them.
transactions.limit_answer_time(transactions.REQUEST_TIMEOUT_S)
# Five eighths of the threads may wait for programs' bodies, and a quarter for people's forms
# (forms.py); the last eighth handles everything else. With fewer, fast publishers would slow down:
# of 32 threads, up to ten are between requesting a body and having it.
bodies.limit(max(1, children.web_threads() * 5 // 8))
# A waiting receive call holds a connection and a slot, but no thread (deferred.py).
polls.limit(children.long_polls())
programs = FastPathHandler()
Environment: TypeAlias = dict[str, Any]


class Door(NamedTuple):
    """A way into the web server for one kind of client.

    gRPC needs HTTP/2, so it has a server of its own (`delivery.cluster.children.grpc`).
    """

    name: str
    is_meant: Callable[[Environment], bool]
    """Whether the door answers this request."""
    application: Callable[[Environment, Callable[..., Any]], Iterable[bytes]]
    """A WSGI application."""


def people(environ: Environment, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve a page of the console or the portal."""
    with short_turns:
        return pages(environ, start_response)


def serve_sqs(environ: Environment, start_response: Callable[..., Any]) -> list[bytes]:
    """Handle one request of an SQS client, without sessions and CSRF checks."""
    path = environ["PATH_INFO"]
    done = handler.answer(environ, _deferring(environ.get(fast_path.DEFER_RESPONSE), path))
    if not done.is_read:
        lingering.keep(environ)
    start_response(f"{done.status} {HTTPStatus(done.status).phrase}", _headers(done, path))
    return [done.body]


DOORS = (
    Door("programs", programs.is_meant, programs),
    Door("sqs", handler.is_meant, serve_sqs),
    Door("people", lambda environ: True, people),
)
"""The first door that a request is meant for answers it."""


def application(environ: Environment, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a request at its door."""
    for door in DOORS:
        if door.is_meant(environ):
            return door.application(environ, start_response)
    raise AssertionError("unreachable")


def _headers(done: HandlerResponse, path: str) -> list[tuple[str, str]]:
    headers = [*done.headers, ("Content-Length", str(len(done.body)))]
    if not done.is_read:
        # The unread body would be taken for the next request.
        headers.append(("Connection", "close"))
    return security.complete(headers, path)


def _deferring(defer: fast_path.Defer | None, path: str) -> handler.Defer | None:
    """Wrap the deferral for responses of the SQS handler; None if the server has none."""
    if defer is None:
        return None

    def begin() -> handler.DeferResponse:
        answer_later = defer()

        def answer(done: HandlerResponse, confirm: Callable[[], object]) -> bool:
            whole = fast_path.Response(done.status, done.body, _headers(done, path))
            return answer_later(whole, confirm)

        return answer

    return begin
