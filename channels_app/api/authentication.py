"""Authenticate and authorize the requests of REST framework's views."""

from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from channels_app.access import callers
from channels_app.access.callers import Caller
from channels_app.core.errors import Unauthenticated


class KeyAuthentication(BaseAuthentication):
    """Authenticate ``Authorization: Bearer hsk_...``; any other value is a 401."""

    def authenticate(self, request: Request) -> tuple[Caller, Caller] | None:
        """The caller; None without the header. Raises Unauthenticated."""
        caller = callers.identify(request.META.get("HTTP_AUTHORIZATION"))
        return None if caller is None else (caller, caller)


class HasScope(BasePermission):
    """Require one of the scopes that the view declares for the method, and the channel's grant."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """True, or raises Unauthenticated, Forbidden and NotFound."""
        caller = request.auth
        if not isinstance(caller, Caller):
            raise Unauthenticated("not_authenticated", callers.NO_KEY)
        method = "GET" if request.method == "HEAD" else request.method
        wanted: tuple[str, ...] = getattr(view, "scopes", {}).get(method, ())
        callers.authorize(caller, wanted, view.kwargs.get("channel"))
        return True


def caller_of(request: Request) -> Caller:
    """The caller of a request that passed HasScope."""
    caller: Any = request.auth
    assert isinstance(caller, Caller)
    return caller
