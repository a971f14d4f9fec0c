"""Answers for what no view answers: problems for programs, pages for people."""

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from channels_app.api import problems

API = "/api/"


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400: what Django itself refuses, such as a thousand parameters."""
    if request.path_info.startswith(API):
        return problems.answer(400, "bad_request", "The request cannot be read.")
    return defaults.bad_request(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404: no such address."""
    if request.path_info.startswith(API):
        return problems.answer(404, "not_found", "There is nothing here; see /api/docs/.")
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """500: a bug. The log has the traceback, the answer has nothing of it."""
    if request.path_info.startswith(API):
        detail = "The broker failed, and its log says why. Send the request again later."
        return problems.answer(500, "internal_error", detail)
    return defaults.server_error(request)
