"""Register webhooks, and show and change a webhook: its deliveries, health and settings."""

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render

from channels_app.core.errors import BrokerError, NotFound, PreconditionFailed, RateLimited
from channels_app.core.http import Precondition
from channels_app.database import clock
from channels_app.models import Channel, Consumer, EventType
from channels_app.portal.access import TeamRequest
from channels_app.portal.forms import complaint, refuse, tried
from channels_app.registry import api_keys, consumers, secrets
from channels_app.registry.cache import ChannelConfig, config_cache
from delivery.core import timing
from delivery.core.lifecycle import SHOWN_STATES, DeliveryState
from delivery.core.outcome import Outcome
from delivery.models import Counter, Delivery, Notification
from delivery.portal import charts, pages, policy, presenters
from delivery.portal.forms import (
    RegisterForm,
    SecretRotationForm,
    SwitchForm,
    WebhookForm,
    fault_of,
    initial,
)
from delivery.portal.policy import WebhookView
from delivery.portal.presenters import code_for
from delivery.processes import wakeups
from delivery.queue import due_times
from delivery.serializers.filters import SPANS, DeliveryFilter
from delivery.transport import test_delivery

PER_PAGE = 25
NOTICES = 20
MAX_UPCOMING = 100
NEW = Precondition(must_be_new=True)
TAKEN = "The name is taken on this channel; choose another one."
MAX_TYPES = 500
"""Maximum event types on a page."""


def tab(webhook: Consumer, name: str, more: dict[str, Any]) -> dict[str, Any]:
    """Return the context of a tab, with the part that all tabs share."""
    counts = Counter.read([webhook.id])[webhook.id]
    word, tone, _ = webhook.condition
    health = getattr(webhook, "health", None)
    probe_at = health.next_probe_at if health else None
    return {
        "webhook": webhook,
        "tab": name,
        "condition": word,
        "tone": tone,
        "counts": counts,
        "last": presenters.last_outcome(webhook),
        "health": health,
        "next_probe_at": probe_at if probe_at and probe_at > clock.now() else None,
        **more,
    }


class IndexView(WebhookView):
    """All webhooks of the team."""

    def get(self, request: TeamRequest) -> HttpResponse:
        """List them with state, last deliveries and backlog."""
        webhooks = policy.webhooks_of(request.team).select_related("channel", "health")
        pages_ = Paginator(webhooks.order_by("channel__slug", "client_id"), PER_PAGE)
        page = pages_.get_page(request.GET.get("page"))
        counts = Counter.read(webhook.id for webhook in page)
        strips = charts.strips(counts)
        rows = []
        for webhook in page:
            word, tone, _ = webhook.condition
            ticks = strips[webhook.id]
            arrived = sum(tick["state"] == "delivered" for tick in ticks)
            rows.append(
                {
                    "webhook": webhook,
                    "condition": word,
                    "tone": tone,
                    "counts": counts[webhook.id],
                    "ticks": ticks,
                    "arrived": arrived,
                    "last": presenters.last_outcome(webhook),
                }
            )
        return self.page("portal/webhooks/index.html", {"rows": rows, "page": page})


class DeliveriesView(WebhookView):
    """The tab Deliveries."""

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """List deliveries, newest first, filtered."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        return self.page("portal/webhooks/deliveries.html", _listed(request, webhook, "deliveries"))


class DeadLettersView(WebhookView):
    """The tab of dead letters."""

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """List dead letters, newest first, filtered, with a form to replay them."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        return self.page("portal/webhooks/dead.html", _listed(request, webhook, "dead"))


class UpcomingView(WebhookView):
    """The tab of upcoming deliveries."""

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """List the next deliveries in the order of their time."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        keys = due_times.ahead(webhook.id, clock.now(), MAX_UPCOMING + 1)
        deliveries = Delivery.objects.in_bulk(keys[:MAX_UPCOMING])
        rows = [presenters.delivery(deliveries[key]) for key in keys if key in deliveries]
        context = {"rows": rows, "is_more": len(keys) > MAX_UPCOMING}
        return self.page("portal/webhooks/upcoming.html", tab(webhook, "upcoming", context))


class HealthView(WebhookView):
    """The tab of health."""

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Show charts, percentiles and notifications."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        span = request.GET.get("span", "")
        span = span if span in charts.SPANS else "24h"
        bars = charts.bars(webhook.id, span, clock.now())
        whole = timing.together(bars)
        context = {
            "span": span,
            "spans": list(charts.SPANS),
            "columns": charts.columns(bars),
            "canvas": (charts.WIDTH, charts.HEIGHT),
            "whole": whole,
            "rate": timing.success_rate(whole),
            "percentiles": [
                (f"p{n}", timing.percentile(whole.answers, n / 100)) for n in (50, 95, 99)
            ],
            "sample": charts.SAMPLE,
            "notices": Notification.objects.filter(consumer=webhook).order_by("-id")[:NOTICES],
        }
        return self.page("portal/webhooks/health.html", tab(webhook, "health", context))


class SettingsView(WebhookView):
    """The tab of settings."""

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Show the settings."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        return self._form(webhook, _form_of(webhook, initial=initial(webhook)))

    def post(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Save the settings, unless another person changed them meanwhile."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        form = _form_of(webhook, request.POST)
        seen = request.POST.get("version", "")
        done = tried(
            form,
            lambda: consumers.patch(
                channel,
                client_id,
                form.values(),
                principal=policy.publisher_of(request),
                condition=Precondition(frozenset({int(seen)} if seen.isdecimal() else ())),
            ),
        )
        if done is None:
            return self._form(webhook, form, status=422)
        messages.success(request, "Saved." if done.changed else "Nothing was changed.")
        return redirect("webhooks:settings", request.team.slug, channel, client_id)

    def _form(self, webhook: Consumer, form: WebhookForm, *, status: int = 200) -> HttpResponse:
        context = tab(webhook, "settings", {"form": form})
        return self.page("portal/webhooks/settings.html", context, status=status)


class SecretView(WebhookView):
    """The tab of the signing secret."""

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Show which secrets sign, and how to verify; never the secrets themselves."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        return self._show(webhook, SecretRotationForm(), "")

    def post(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Rotate the secret, and show the new one once."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        form = SecretRotationForm(request.POST)
        done = tried(
            form,
            lambda: secrets.rotate(
                channel,
                client_id,
                {"overlap_s": form.cleaned_data["overlap_s"]},
                principal=request.principal.because(form.cleaned_data["reason"]),
            ),
        )
        if done is None:
            return self._show(webhook, form, "", status=422)
        return self._show(done.row, SecretRotationForm(), done.secrets[0])

    def _show(
        self, webhook: Consumer, form: SecretRotationForm, secret: str, *, status: int = 200
    ) -> HttpResponse:
        live = webhook.secrets.exclude(expires_at__lte=clock.now()).order_by("-id")
        code = code_for(webhook, secret) if secret else code_for(webhook)
        context = {"form": form, "secret": secret, "secrets": live, "snippets": code}
        return self.page(
            "portal/webhooks/secret.html", tab(webhook, "secret", context), status=status
        )


class TestView(WebhookView):
    """Send a signed test delivery."""

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Show what will be sent."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        return self.page("portal/webhooks/test.html", tab(webhook, "test", {}))

    def post(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Send it and show the response."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        context: dict[str, Any] = {}
        status = 200
        try:
            probed = test_delivery.probe(policy.config_of(webhook), team_id=request.team.id)
            context["probed"] = presenters.probed(probed)
        except RateLimited as error:
            context["refused"], status = error.detail, error.status
        except BrokerError as error:
            context["refused"] = error.detail
        shown = tab(webhook, "test", context)
        return self.page("portal/webhooks/test.html", shown, status=status)


class SwitchView(WebhookView):
    """Pause, resume or retire a webhook."""

    steps = {
        "pause": (consumers.pause, "Paused. New messages wait until you resume it."),
        "resume": (consumers.resume, "Resumed. Waiting messages are being sent."),
        "retire": (consumers.retire, "Retired. It gets no more messages."),
    }

    def post(self, request: TeamRequest, channel: str, client_id: str, action: str) -> HttpResponse:
        """Run the action and show a message."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        (step, success_message), form = self.steps[action], SwitchForm(request.POST)
        done = tried(
            form,
            lambda: step(
                channel,
                client_id,
                principal=request.principal.because(form.cleaned_data["reason"]),
            ),
        )
        if done is None:
            messages.error(request, complaint(form))
        else:
            messages.success(request, success_message)
            wakeups.notify_pumps([webhook.id])
        if done and action == "retire":
            return redirect("webhooks:index", request.team.slug)
        return redirect("webhooks:deliveries", request.team.slug, channel, client_id)


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
        channel_row = policy.channel_of(channel)
        types = EventType.objects.filter(channel=channel_row).order_by("deprecated", "name")[
            :MAX_TYPES
        ]
        shown = [presenters.event_type(row) for row in types]
        # Open one with an example, so that people see what they will receive.
        opened = next(
            (event_type for event_type in shown if event_type["example"] or event_type["schema"]),
            None,
        )
        context = {
            "channel": channel_row,
            "types": [event_type | {"is_open": event_type is opened} for event_type in shown],
            "mine": policy.webhooks_of(request.team).filter(channel=channel_row),
        }
        return self.page("portal/webhooks/channel.html", context)


class RegisterView(WebhookView):
    """The form, the test of a URL, and the secret."""

    reader = "editor"

    def get(self, request: TeamRequest, channel: str) -> HttpResponse:
        """Show an empty form."""
        channel_row = policy.channel_of(channel)
        return self._form(
            channel_row,
            _form_for(request, channel_row, initial={"retry": "", "lapsed_leases": "free"}),
        )

    def post(self, request: TeamRequest, channel: str) -> HttpResponse:
        """Test the URL or register; an invalid form keeps its values."""
        channel_row = policy.channel_of(channel)
        form = _form_for(request, channel_row, request.POST)
        if request.POST.get("do") == "try":
            return self._try(request, channel_row, form)
        if not form.is_valid():
            return self._form(channel_row, form, status=422)
        name = form.cleaned_data["client_id"]
        try:
            done = consumers.put(
                channel_row.slug,
                name,
                form.values(),
                principal=policy.publisher_of(request),
                condition=NEW,
            )
        except (PreconditionFailed, NotFound):
            form.add_error("client_id", TAKEN)
            return self._form(channel_row, form, status=409)
        except BrokerError as error:
            refuse(form, error)
            return self._form(channel_row, form, status=error.status)
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
                config = _config_of(channel)
                answer = test_delivery.probe_address(
                    url, config, "your-webhook", team_id=request.team.id
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


def _listed(request: TeamRequest, webhook: Consumer, name: str) -> dict[str, Any]:
    serializer = pages.DEAD_LETTERS if name == "dead" else pages.DELIVERIES
    values, faults = serializer.usable(request.GET)
    if name == "dead":
        values["states"] = DeliveryState.DEAD.value
    listed = pages.find(
        webhook.id,
        DeliveryFilter.of(values),
        before=request.GET.get("before", ""),
        after=request.GET.get("after", ""),
    )
    context = {
        "rows": [presenters.delivery(row) for row in listed.rows],
        "found": listed,
        "wanted": serializer.given(request.GET),
        "faults": faults,
        "states": [(shown, presenters.state(shown)) for shown in SHOWN_STATES],
        "outcomes": [(outcome.value, outcome.words) for outcome in Outcome],
        "spans": list(SPANS),
        "begun": "before" in request.GET or "after" in request.GET,
    }
    return tab(webhook, name, context)


def _form_of(webhook: Consumer, *args: Any, **kwargs: Any) -> WebhookForm:
    dead_letters = set(api_keys.published_on(webhook.team.slug)) if webhook.team else set()
    if webhook.dead_letter_channel:
        dead_letters.add(webhook.dead_letter_channel.slug)  # an operator may have chosen another
    form = WebhookForm(
        webhook.channel, *args, dead_letters=sorted(dead_letters), stored=webhook.retry, **kwargs
    )
    if webhook.mode == Consumer.Mode.PULL:
        form.only_what_pulls_need()
    else:
        form.only_what_is_called_needs()
    return form


def _form_for(request: TeamRequest, channel: Channel, *args: Any, **kwargs: Any) -> RegisterForm:
    dead_letters = api_keys.published_on(request.team.slug)
    return RegisterForm(channel, *args, dead_letters=dead_letters, **kwargs)


def _config_of(channel: Channel) -> ChannelConfig:
    config = config_cache.channel(channel.slug)
    if config is None:
        raise Http404(f"There is no channel {channel.slug}.")
    return config


def _typed(form: RegisterForm) -> dict[str, Any]:
    """Return the typed values as initial values of a new form."""
    data: Any = form.data
    return {
        name: data.getlist(name) if name == "types" else data.get(name, "") for name in form.fields
    }
