"""Format errors as RFC 9457 problems: a stable code, a sentence that helps, the field."""

import json
import logging
import math
import threading
import time
from http import HTTPStatus
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import Error as DatabaseFailure
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpResponse
from django.http.request import UnreadablePostError
from rest_framework.exceptions import APIException, NotAuthenticated
from rest_framework.response import Response
from rest_framework.views import set_rollback

from channels_app.core.errors import BrokerError, StorageFull
from channels_app.database.raw import dialect
from channels_app.ingest import storage

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
"""Retry-After in seconds while storage is unavailable, or other callers are ahead."""
UNAVAILABLE = {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE}
LINE_S = 1.0
"""Minimum seconds between two log lines about unavailable storage."""
log = logging.getLogger(__name__)


def document(
    status: int, code: str, detail: str, *, field: str = "", faults: Any = ()
) -> dict[str, Any]:
    """The body of a problem."""
    problem: dict[str, Any] = {
        "type": f"urn:hookstation:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": _printable(detail),
    }
    if field:
        problem["field"] = _printable(field)
    if faults:
        problem["errors"] = [
            {"field": _printable(fault.field), "detail": _printable(fault.detail)}
            for fault in faults
        ]
    return problem


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler; None for a bug, to which broker_site/errors.py responds."""
    found = translate(error)
    if found is None:
        return None
    body, headers = found
    if body["status"] == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(context["view"].allowed_methods)
    set_rollback()
    response = Response(body, status=body["status"], headers=headers, content_type=CONTENT_TYPE)
    if body["status"] in UNAVAILABLE:
        # Django's own flag; otherwise it logs an ERROR per response, while _outage logs a summary.
        response._has_been_logged = True  # type: ignore[attr-defined]  # its types leave it out
    return response


def answer(status: int, code: str, detail: str) -> HttpResponse:
    """A problem outside of DRF."""
    body = json.dumps(document(status, code, detail))
    return HttpResponse(body, status=status, content_type=CONTENT_TYPE)


class _Outage:
    """Logs how many requests were refused: thousands of lines per second would fill the disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged_at = float("-inf")
        self._suppressed = 0

    def tell(self, error: Exception) -> None:
        """Count a request that could not be served."""
        with self._lock:
            self._suppressed += 1
            if time.monotonic() - self._logged_at < LINE_S:
                return
            count, self._suppressed, self._logged_at = self._suppressed, 0, time.monotonic()
        log.warning("storage is unavailable (requests refused: %d): %s", count, error)


_outage = _Outage()


def _printable(text: str) -> str:
    # Text from callers may contain unpaired surrogates, which cannot be encoded.
    return text.encode("utf-8", "backslashreplace").decode()


def translate(error: Exception) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The body and headers of the response to an error; None for a bug."""
    if isinstance(error, DatabaseFailure) and dialect.is_full(error):
        _outage.tell(error)
        error = StorageFull("storage_full", storage.FULL)
    if isinstance(error, BrokerError):
        wait = error.retry_after_s
        headers = {"Retry-After": str(max(1, math.ceil(wait)))} if wait is not None else {}
        return document(
            error.status, error.code, error.detail, field=error.field, faults=error.faults
        ), headers
    if isinstance(error, OperationalError | InterfaceError):
        _outage.tell(error)
        detail = "Nothing was stored: the database is unavailable. Send the request again."
        return document(503, "storage_unavailable", detail), {"Retry-After": str(RETRY_AFTER_S)}
    if isinstance(error, RequestDataTooBig):
        return document(413, "body_too_large", "The request is too large."), {}
    if isinstance(error, SuspiciousOperation):
        # Django's response would be the same, but with a traceback in the log each time.
        return document(400, "bad_request", "The request cannot be read."), {}
    if isinstance(error, UnreadablePostError):
        return document(400, "broken_request", "The request ended before its body did."), {}
    if isinstance(error, Http404):
        return document(404, "not_found", "There is nothing at this address."), {}
    if isinstance(error, APIException):
        return _of_framework(error)
    return None


def _of_framework(error: APIException) -> tuple[dict[str, Any], dict[str, str]]:
    headers: dict[str, str] = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    codes = error.get_codes()
    code = codes if isinstance(codes, str) else error.default_code
    detail = str(error.detail) if isinstance(error.detail, str) else error.default_detail
    if isinstance(error, NotAuthenticated):
        detail = "Send an API key: Authorization: Bearer hsk_..."
    return document(error.status_code, code, str(detail)), headers
