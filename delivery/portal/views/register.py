"""Register a webhook: choose a channel, fill in the form, and show the secret once."""

from typing import Any

from django.db.models import Count
from django.http import Http404, HttpResponse
from django.shortcuts import render

from channels_app.core.errors import BrokerError, NotFound, PreconditionFailed, RateLimited
from channels_app.core.http import Precondition
from channels_app.models import Channel, EventType
from channels_app.portal.access import TeamRequest
from channels_app.portal.forms import refuse
from channels_app.registry import api_keys, consumers
from channels_app.registry.cache import ChannelConfig, config_cache
from delivery.portal import policy, presenters
from delivery.portal.forms import RegisterForm, fault_of
from delivery.portal.policy import WebhookView
from delivery.portal.presenters import code_for
from delivery.transport import test_delivery

NEW = Precondition(must_be_new=True)
TAKEN = "The name is taken on this channel; choose another one."
MAX_TYPES = 500
"""Maximum event types on a page."""


class CatalogueView(WebhookView):
    """The channels on which a team may register."""

    section = "catalogue"

    def get(self, request: TeamRequest) -> HttpResponse:
        """List all external channels."""
        channels = Channel.objects.filter(exposure=policy.EXTERNAL).order_by("slug")
        counted = channels.annotate(type_count=Count("event_type_set"))
        return self.page("portal/webhooks/catalogue.html", {"channels": counted})


class ChannelPage(WebhookView):
    """One channel's event types."""

    section = "catalogue"

    def get(self, request: TeamRequest, channel: str) -> HttpResponse:
        """Show each event type with description, schema and an example."""
        found = policy.channel_of(channel)
        types = EventType.objects.filter(channel=found).order_by("deprecated", "name")[:MAX_TYPES]
        shown = [presenters.event_type(row) for row in types]
        # Open one with an example, so that people see what they will receive.
        opened = next((one for one in shown if one["example"] or one["schema"]), None)
        context = {
            "channel": found,
            "types": [one | {"is_open": one is opened} for one in shown],
            "mine": policy.webhooks_of(request.team).filter(channel=found),
        }
        return self.page("portal/webhooks/channel.html", context)


class RegisterView(WebhookView):
    """The form, the test of a URL, and the secret."""

    reader = "editor"

    def get(self, request: TeamRequest, channel: str) -> HttpResponse:
        """Show an empty form."""
        found = policy.channel_of(channel)
        return self._form(
            found, _form_for(request, found, initial={"retry": "", "lapsed_leases": "free"})
        )

    def post(self, request: TeamRequest, channel: str) -> HttpResponse:
        """Test the URL or register; an invalid form keeps its values."""
        found = policy.channel_of(channel)
        form = _form_for(request, found, request.POST)
        if request.POST.get("do") == "try":
            return self._try(request, found, form)
        if not form.is_valid():
            return self._form(found, form, status=422)
        name = form.cleaned_data["client_id"]
        try:
            done = consumers.put(
                found.slug,
                name,
                form.values(),
                principal=policy.publisher_of(request),
                condition=NEW,
            )
        except (PreconditionFailed, NotFound):
            form.add_error("client_id", TAKEN)
            return self._form(found, form, status=409)
        except BrokerError as error:
            refuse(form, error)
            return self._form(found, form, status=error.status)
        (secret,) = done.secrets
        context = {
            "webhook": done.row,
            "secret": secret,
            "snippets": code_for(done.row, secret),
        }
        return self.page("portal/webhooks/registered.html", context, status=201)

    def _try(self, request: TeamRequest, channel: Channel, form: RegisterForm) -> HttpResponse:
        form.is_valid()
        url = form.data.get("url", "").strip()
        fault = fault_of(url)
        answer, status = None, 200
        try:
            if not fault:
                view = _view(channel)
                answer = test_delivery.probe_address(
                    url, view, "your-webhook", team_id=request.team.id
                )
        except RateLimited as error:
            fault, status = error.detail, error.status
        # A test does not require all fields, so show the form without errors.
        form = _form_for(request, channel, initial=_typed(form))
        context = {"fault": fault, "probed": answer and presenters.probed(answer), "tried": url}
        return self._form(channel, form, context, status=status)

    def _form(
        self, channel: Channel, form: RegisterForm, more: Any = None, *, status: int = 200
    ) -> HttpResponse:
        context = {"channel": channel, "form": form, **(more or {})}
        return self.page("portal/webhooks/register.html", context, status=status)


class CheckView(WebhookView):
    """Check a URL while a person types it."""

    def get(self, request: TeamRequest) -> HttpResponse:
        """Return a sentence."""
        url = request.GET.get("url", "").strip()
        context = {"url": url, "fault": fault_of(url), "plain": url.lower().startswith("http://")}
        return render(request, "portal/webhooks/check.html", context)


def _view(channel: Channel) -> ChannelConfig:
    view = config_cache.channel(channel.slug)
    if view is None:
        raise Http404(f"There is no channel {channel.slug}.")
    return view


def _form_for(request: TeamRequest, channel: Channel, *args: Any, **kwargs: Any) -> RegisterForm:
    dead_letters = api_keys.published_on(request.team.slug)
    return RegisterForm(channel, *args, dead_letters=dead_letters, **kwargs)


def _typed(form: RegisterForm) -> dict[str, Any]:
    """Return the typed values as initial values of a new form."""
    data: Any = form.data
    return {
        name: data.getlist(name) if name == "types" else data.get(name, "") for name in form.fields
    }
