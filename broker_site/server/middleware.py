"""Define the middleware of people's requests; programs' requests skip it (fast_path.py)."""

from collections.abc import Callable

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.http.response import HttpResponseBase

from broker_site.server import errors, security
from broker_site.server.lingering import lingering
from channels_app import origin
from channels_app.core.errors import KeyUnavailable
from channels_app.ingest.concurrency import ConcurrencyLimit
from delivery.cluster import children

SHARE = 4
"""The divisor: one of this many threads may wait for forms."""
PROGRAMS = "/api/v1/"
"""Views below this path read bodies themselves, only for callers with a key."""


class Headers:
    """Middleware: content security policy, other security headers, and Content-Length."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response with its headers; those set by a view stay."""
        response = self._get_response(request)
        headers = response.headers
        for name, value in security.complete(list(response.items()), request.path_info):
            headers[name] = value
        if isinstance(response, HttpResponse) and "Content-Length" not in headers:
            headers["Content-Length"] = str(len(response.content))
        return response


class Origin:
    """Middleware: record the origin of a request for the audit log."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response; audit entries written meanwhile have the origin."""
        face = "console" if request.path_info.startswith("/admin/") else "portal"
        token = origin.current.set(origin.of(face, request.META))
        try:
            return self._get_response(request)
        finally:
            origin.current.reset(token)


class Forms:
    """Middleware: read a form before the view runs, if a slot is free.

    The web server waits in a thread as long as the sender of a body is slow, and anybody can post
    to the sign-in page: without a limit, a few dozen bodies that never end would stop publishing.
    A single address cannot take all slots, since that would lock out everybody else.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response
        self._places = ConcurrencyLimit(max(1, children.web_threads() // SHARE))

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response; 503 if no slot is free, 413 if the form is too large, 400 if incomplete."""
        if _has_none(request) or request.path_info.startswith(PROGRAMS):
            return self._get_response(request)
        address = request.META.get("REMOTE_ADDR")
        if not self._places.take(address):
            lingering.keep(request.META)
            return errors.too_slow(request)
        try:
            is_whole = len(request.body) == int(request.META["CONTENT_LENGTH"])
        except UnreadablePostError:
            is_whole = False
        except RequestDataTooBig:
            lingering.keep(request.META)
            return errors.too_large(request)
        finally:
            self._places.give_back(address)
        # A truncated form can look like a complete one with empty fields.
        return self._get_response(request) if is_whole else errors.broken_off(request)


class Keys:
    """Middleware: show an error page if a view lacks an encryption key.

    Forms show this error themselves; the middleware serves views without a form, and those of
    other packages, such as the ones for second factors.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response of the view."""
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """503 for a missing key; the view's transaction has been rolled back."""
        if not isinstance(error, KeyUnavailable):
            return None
        answer = errors.page(request, error.status, "An encryption key is missing", error.detail)
        answer["Retry-After"] = str(error.retry_after_s)
        return answer


def _has_none(request: HttpRequest) -> bool:
    # Django reads no body if its Content-Length is missing or not a number.
    return not request.META.get("CONTENT_LENGTH", "").strip("0").isdecimal()
