"""Manage API keys of a team and of its producers: create, show once, rotate, revoke."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.debug import sensitive_variables

from channels_app.core.errors import NotFound
from channels_app.database import clock
from channels_app.models import ApiKey
from channels_app.portal.access import TeamRequest, TeamView
from channels_app.portal.forms import KeyForm, KeyRotationForm, tried
from channels_app.registry import api_keys
from channels_app.registry.resource import WriteResult

MAX_SHOWN = 200
"""Valid keys are always shown; expired and revoked ones only up to this total."""


class KeysView(TeamView):
    """Keys with their rights and last use, valid ones first."""

    section = "keys"

    def get(self, request: TeamRequest) -> HttpResponse:
        """Show the list."""
        team_keys = api_keys.keys_of(request.team.slug).select_related("producer", "team")
        keys = list(api_keys.working(team_keys).order_by("-id"))
        room = max(MAX_SHOWN - len(keys), 0)
        over = list(api_keys.over(team_keys).order_by("-id")[: room + 1])
        rows = [(key, state_of(key)) for key in keys + over[:room]]
        return self.page("portal/keys.html", {"rows": rows, "are_all": len(over) <= room})


class KeyView(TeamView):
    """Base of views that create a key, whose text only this one response contains."""

    section = "keys"
    reader = "editor"

    def show(self, done: WriteResult[ApiKey], **more: Any) -> HttpResponse:
        """Show the key's text, with a command that uses it."""
        key, secrets = done.row, api_keys.Shown(*done.secrets)
        context = {
            "key": key,
            "text": secrets.key,
            "environment": "\n".join(secrets.environment),
            "curl": curl(key, secrets.key),
            **more,
        }
        return self.page("portal/key_made.html", context)


class NewKeyView(KeyView):
    """Create a key."""

    def get(self, request: TeamRequest) -> HttpResponse:
        """Show the form."""
        return self.page("portal/key_new.html", {"form": KeyForm(request.team)})

    @sensitive_variables()
    def post(self, request: TeamRequest) -> HttpResponse:
        """Create it."""
        form, team = KeyForm(request.team, request.POST), request.team.slug
        done = tried(
            form,
            lambda: api_keys.create_within(
                team, form.values(), principal=request.principal, producer=form.producer()
            ),
        )
        if done is None:
            return self.page("portal/key_new.html", {"form": form}, status=422)
        return self.show(done)


class RotateView(KeyView):
    """Rotate a key."""

    def get(self, request: TeamRequest, key_id: str) -> HttpResponse:
        """Ask for how long both keys shall work."""
        return self._ask(KeyRotationForm(), self._key(request, key_id))

    @sensitive_variables()
    def post(self, request: TeamRequest, key_id: str) -> HttpResponse:
        """Create the successor."""
        key, form = self._key(request, key_id), KeyRotationForm(request.POST)
        done = tried(
            form,
            lambda: api_keys.rotate(
                key_id, form.cleaned_data, principal=request.principal, team=request.team.slug
            ),
        )
        if done is None:
            return self._ask(form, key, status=422)
        return self.show(done, old=ApiKey.objects.get(pk=key.pk))

    def _ask(self, form: KeyRotationForm, key: ApiKey, status: int = 200) -> HttpResponse:
        return self.page("portal/key_rotate.html", {"form": form, "key": key}, status=status)

    def _key(self, request: TeamRequest, key_id: str) -> ApiKey:
        key = api_keys.keys_of(request.team.slug).filter(key_id=key_id).first()
        if key is None:
            raise Http404(f"There is no key {key_id}.")
        return key


class RevokeView(TeamView):
    """Revoke a key."""

    section = "keys"

    def post(self, request: TeamRequest, key_id: str) -> HttpResponse:
        """Revoke it. Raises Http404."""
        try:
            done = api_keys.revoke(key_id, principal=request.principal, team=request.team.slug)
        except NotFound as unknown:
            raise Http404(unknown.detail) from None
        messages.success(request, f"{done.row} is revoked. It stops working within a second.")
        return redirect("portal:keys", request.team.slug)


def state_of(key: ApiKey) -> str:
    """``valid``, ``expired`` or ``revoked``."""
    if key.revoked_at:
        return "revoked"
    return "expired" if key.expires_at and key.expires_at <= clock.now() else "valid"


def curl(key: ApiKey, text: str) -> str:
    """A command that tests the key, ready to be pasted."""
    line = f'curl -H "Authorization: Bearer {text}" {settings.PUBLIC_URL}/api/v1/channels'
    if "publish" not in key.scopes:
        return line
    channel = key.channels[0] if key.channels else "CHANNEL"
    return (
        f"{line}/{channel}/messages \\\n"
        '  -H "Content-Type: application/json" -d \'{"hello": "world"}\''
    )
