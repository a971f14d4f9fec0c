"""The WSGI application of SQS clients: neither sessions nor CSRF stand in front of it."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from broker_site import security
from delivery.sqs import handler


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Answer one request, in one piece."""
    done = handler.answer(environ)
    headers = [*done.headers, ("Content-Length", str(len(done.body)))]
    if not done.is_read:
        # A body that nobody read stands between this request and the next one.
        headers.append(("Connection", "close"))
    start_response(
        f"{done.status} {HTTPStatus(done.status).phrase}",
        security.complete(headers, environ["PATH_INFO"]),
    )
    return [done.body]
