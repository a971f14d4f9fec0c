"""Format errors as RFC 9457 problems: a stable code, a sentence that helps, the field."""

import json
import math
from http import HTTPStatus
from typing import Any

from django.http import HttpResponse
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.views import set_rollback

from channels_app.core.errors import Unauthenticated, printable
from channels_app.ingest import refusals

CONTENT_TYPE = "application/problem+json"
CHALLENGE = 'Bearer realm="hookstation"'
"""How to authenticate (RFC 6750)."""
UNAVAILABLE = {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.INSUFFICIENT_STORAGE}


def document(
    status: int, code: str, detail: str, *, field: str = "", faults: Any = ()
) -> dict[str, Any]:
    """The body of a problem."""
    problem: dict[str, Any] = {
        "type": f"urn:hookstation:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": printable(detail),
    }
    if field:
        problem["field"] = printable(field)
    if faults:
        problem["errors"] = [
            {"field": printable(fault.field), "detail": printable(fault.detail)} for fault in faults
        ]
    return problem


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler; None for a bug, to which broker_site/server/errors.py responds."""
    problem = translate(error)
    if problem is None:
        return None
    body, headers = problem
    if body["status"] == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(context["view"].allowed_methods)
    set_rollback()
    response = Response(body, status=body["status"], headers=headers, content_type=CONTENT_TYPE)
    if body["status"] in UNAVAILABLE:
        # Django's own flag; otherwise it logs an ERROR per response. ingest/refusals.py logs a
        # summary.
        response._has_been_logged = True  # type: ignore[attr-defined]  # its types leave it out
    return response


def answer(status: int, code: str, detail: str) -> HttpResponse:
    """A problem outside of DRF."""
    body = json.dumps(document(status, code, detail))
    return HttpResponse(body, status=status, content_type=CONTENT_TYPE)


def translate(error: Exception) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The body and headers of the response to an error; None for a bug."""
    refusal = refusals.of(error)
    if refusal is None:
        return _of_framework(error) if isinstance(error, APIException) else None
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_s)))
    if isinstance(refusal, Unauthenticated):
        headers["WWW-Authenticate"] = CHALLENGE
    body = document(
        refusal.status, refusal.code, refusal.detail, field=refusal.field, faults=refusal.faults
    )
    return body, headers


def _of_framework(error: APIException) -> tuple[dict[str, Any], dict[str, str]]:
    codes = error.get_codes()
    code = codes if isinstance(codes, str) else error.default_code
    detail = str(error.detail) if isinstance(error.detail, str) else error.default_detail
    return document(error.status_code, code, str(detail)), {}
