"""Forms: what strangers may post is read by a few threads, so that slow senders hold no more."""

from collections.abc import Callable

from django.http import HttpRequest, UnreadablePostError
from django.http.response import HttpResponseBase

from broker_site import errors
from channels_app.api.concurrency import ConcurrencyLimit
from delivery.runtime import children

SHARE = 4
"""One of so many threads may wait for people's forms."""
PROGRAMS = "/api/v1/"
"""Their bodies are read for callers with a key alone, by views of their own."""


class Forms:
    """Middleware: reads a form before anybody asks for it, where there is a place.

    The web server waits for a body as long as its sender likes, in a thread, and anybody may post
    to the sign-in: without a limit a few dozen bodies that never end would stop publishing. And no
    address has all the places: those of one sender would shut everybody else out.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response
        self._places = ConcurrencyLimit(max(1, children.web_threads() // SHARE))

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The answer; 503 where too many forms are on their way, 400 where one broke off."""
        if _has_none(request) or request.path_info.startswith(PROGRAMS):
            return self._get_response(request)
        address = request.META.get("REMOTE_ADDR")
        if not self._places.take(address):
            return errors.too_slow(request)
        try:
            is_whole = len(request.body) == int(request.META["CONTENT_LENGTH"])
        except UnreadablePostError:
            is_whole = False
        finally:
            self._places.give_back(address)
        # Half a form may look like a whole one, in which fields were left empty.
        return self._get_response(request) if is_whole else errors.broken_off(request)


def _has_none(request: HttpRequest) -> bool:
    # Of a body without a length Django reads nothing, and of one that is no number either.
    return not request.META.get("CONTENT_LENGTH", "").strip("0").isdecimal()
