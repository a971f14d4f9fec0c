"""Serve SQS clients as a WSGI application without sessions and CSRF checks."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from broker_site.server import security
from broker_site.server.lingering import lingering
from channels_app.api import fast_path
from delivery.sqs import handler
from delivery.sqs.handler import HandlerResponse


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Handle one request; the response has one part."""
    path = environ["PATH_INFO"]
    done = handler.answer(environ, _deferring(environ.get(fast_path.DEFER_RESPONSE), path))
    if not done.is_read:
        lingering.keep(environ)
    start_response(f"{done.status} {HTTPStatus(done.status).phrase}", _headers(done, path))
    return [done.body]


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
