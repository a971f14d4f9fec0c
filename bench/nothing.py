"""Provide a web application that only reads the request, to measure the server alone."""

from collections.abc import Callable, Iterable
from typing import Any

ANSWER = b'{"id":"msg_0000000000000","due_at":"2000-01-01T00:00:00.000Z"}'
HEADERS = [("Content-Type", "application/json"), ("Content-Length", str(len(ANSWER)))]


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Respond with 202 to everything."""
    environ["wsgi.input"].read()
    start_response("202 Accepted", HEADERS)
    return [ANSWER]
