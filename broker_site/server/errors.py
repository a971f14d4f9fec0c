"""Respond to errors outside of views: with problems for programs, pages for people."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views import csrf, defaults

from channels_app.api import problems

API = "/api/"
PORTAL = ("/portal/", "/accounts/")
CONSOLE = "/admin/"


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400: rejected by Django itself, for example for too many parameters."""
    if request.path_info.startswith(API):
        return problems.answer(400, "bad_request", "The request cannot be read.")
    return defaults.bad_request(request, exception)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403: not allowed for this user."""
    if request.path_info.startswith(PORTAL):
        advice = str(exception) or "Your account may not do this. Nothing was changed."
        return page(request, 403, "Not allowed", advice)
    if request.path_info.startswith(CONSOLE):
        advice = "This is the operators' console, and your account is not an operator's."
        return page(request, 403, "Not for your account", advice)
    return defaults.permission_denied(request, exception)


def not_from_here(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403: the CSRF check failed; the log has the reason."""
    if request.path_info.startswith(PORTAL):
        advice = (
            "The form was too old, or cookies are switched off. Nothing was changed. Go back, "
            "load the page again and send the form once more."
        )
        return page(request, 403, "Please send it again", advice)
    return csrf.csrf_failure(request, reason=reason)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404: no such URL."""
    if request.path_info.startswith(API):
        return problems.answer(404, "not_found", "There is nothing here; see /api/docs/.")
    if request.path_info.startswith(PORTAL):
        advice = "The address is wrong, or it belongs to a team that you are no member of."
        return page(request, 404, "There is nothing here", advice)
    return defaults.page_not_found(request, exception)


def too_many(request: HttpRequest) -> HttpResponse:
    """429: too many attempts."""
    advice = "You, or somebody at your address, tried this too often. Wait a few minutes."
    return page(request, 429, "Too many tries", advice)


def broken_off(request: HttpRequest) -> HttpResponse:
    """400: the connection ended before the form was complete."""
    advice = "The connection broke off in the middle of the form. Nothing was changed."
    return page(request, 400, "Please send it again", advice)


def too_large(request: HttpRequest) -> HttpResponse:
    """413: the form is larger than Django takes."""
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 2**20
    advice = f"A form may have up to {most} MiB. Nothing was changed. Go back and shorten it."
    return page(request, 413, "The form is too large", advice)


def too_slow(request: HttpRequest) -> HttpResponse:
    """503: too many forms are being received."""
    advice = "Many forms are being sent at this moment. Go back and send yours once more."
    answer = page(request, 503, "Please send it again", advice)
    answer["Retry-After"] = "1"
    return answer


def server_error(request: HttpRequest) -> HttpResponse:
    """500: a bug. The log has the traceback, the response does not show it."""
    if request.path_info.startswith(API):
        detail = "The broker failed, and its log says why. Send the request again later."
        return problems.answer(500, "internal_error", detail)
    return defaults.server_error(request)


def page(request: HttpRequest, status: int, heading: str, advice: str) -> HttpResponse:
    """A page with a heading and a piece of advice."""
    context = {"heading": heading, "advice": advice}
    return render(request, "portal/problem.html", context, status=status)
