"""Authenticate and authorize the requests of REST framework's views."""

from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from channels_app.access.principal import Principal
from channels_app.core.errors import Unauthenticated
from channels_app.registry import authentication


class KeyAuthentication(BaseAuthentication):
    """Authenticate ``Authorization: Bearer hsk_...``; any other value is a 401."""

    def authenticate(self, request: Request) -> tuple[Principal, Principal] | None:
        """The caller; None without the header. Raises Unauthenticated."""
        principal = authentication.identify(request.META.get("HTTP_AUTHORIZATION"))
        return None if principal is None else (principal, principal)


class HasScope(BasePermission):
    """Require one of the scopes that the view declares for the method, and the channel's grant."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """True, or raises Unauthenticated, Forbidden and NotFound."""
        principal = request.auth
        if not isinstance(principal, Principal):
            raise Unauthenticated("not_authenticated", authentication.NO_KEY)
        method = "GET" if request.method == "HEAD" else request.method
        wanted: tuple[str, ...] = getattr(view, "scopes", {}).get(method, ())
        authentication.authorize(principal, wanted, view.kwargs.get("channel"))
        return True


def principal_of(request: Request) -> Principal:
    """The caller of a request that passed HasScope."""
    principal: Any = request.auth
    assert isinstance(principal, Principal)
    return principal
