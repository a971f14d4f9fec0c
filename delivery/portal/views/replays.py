"""Replay dead letters: show the number, ask for a reason, then show progress."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse, QueryDict
from django.shortcuts import redirect, render

from channels_app.core import ids
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.models import Consumer
from channels_app.portal.access import TeamRequest
from channels_app.portal.forms import tried
from delivery import replay
from delivery.models import Replay
from delivery.portal import policy, presenters
from delivery.portal.forms import ReplayForm
from delivery.portal.pages import DEAD_LETTERS
from delivery.portal.policy import WebhookView
from delivery.portal.views.webhook import tab
from delivery.replay import ReplayFilter

LAST = 20
"""Replays on a page."""
SCAN_ROWS = 50 * LAST
"""Maximum replays of the team read for a page, to find those of this webhook."""


class ReplayStartView(WebhookView):
    """Replay the selected dead letters, or all that match a filter."""

    reader = "editor"

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Show how many deliveries would be replayed."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        return self._ask(request, webhook, ReplayForm())

    def post(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Create the replay."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        form = ReplayForm(request.POST)

        def begin() -> Replay:
            wanted = _filter(request, webhook)
            return replay.create(
                wanted,
                replay.consumers_of(wanted, request.principal),
                request.principal.because(form.cleaned_data["reason"]),
                now=clock.now(),
                rate_per_second=form.cleaned_data["rate_per_second"],
            )

        row = tried(form, begin)
        if row is None:
            return self._ask(request, webhook, form, status=422)
        return redirect("webhooks:replay", request.team.slug, channel, client_id, _public(row))

    def _ask(
        self, request: TeamRequest, webhook: Consumer, form: ReplayForm, *, status: int = 200
    ) -> HttpResponse:
        try:
            wanted = _filter(request, webhook)
        except BrokerError as error:
            raise Http404(error.detail) from None
        count = replay.count(wanted, [webhook], clock.now())
        context = {
            "form": form,
            "count": count,
            "sample": [
                presenters.delivery(row) for row in replay.sample(wanted, [webhook], clock.now())
            ],
            "wanted": DEAD_LETTERS.given(request.GET),
            "selected": len(wanted.ids),
            "query": request.GET.urlencode(),
        }
        return self.page(
            "portal/webhooks/replay_new.html", tab(webhook, "dead", context), status=status
        )


class ReplaysView(WebhookView):
    """Earlier replays of this webhook."""

    def get(self, request: TeamRequest, channel: str, client_id: str) -> HttpResponse:
        """Show the team's last replays, or those before a given one."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        replays = Replay.objects.filter(team_id=webhook.team_id)
        if before := ids.from_public(ids.REPLAY, request.GET.get("before", "")):
            replays = replays.filter(id__lt=before)
        # Newest first by key; replays of other webhooks are skipped, within a limit.
        looked = list(replays.order_by("-id")[:SCAN_ROWS])
        rows = [row for row in looked if row.consumer_ids == [webhook.id]]
        # The next page starts after the last replay shown or read.
        last = (
            rows[LAST - 1] if len(rows) > LAST else looked[-1] if len(looked) == SCAN_ROWS else None
        )
        context = {
            "replays": [_shown(row) for row in rows[:LAST]],
            "older": _public(last) if last else "",
            "is_partial": bool(last) and len(rows) <= LAST,
        }
        return self.page("portal/webhooks/replays.html", tab(webhook, "dead", context))


class ReplayView(WebhookView):
    """One replay's progress."""

    def get(
        self, request: TeamRequest, channel: str, client_id: str, replay_id: str
    ) -> HttpResponse:
        """Show the page, or only its progress for the page's script."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        row = policy.replay_of(webhook, replay_id)
        context = tab(webhook, "dead", {"replay": _shown(row)})
        if "X-Live" in request.headers:
            return render(request, "portal/webhooks/progress.html", context)
        return self.page("portal/webhooks/replay.html", context)


class ReplayCancelView(WebhookView):
    """Stop a replay."""

    def post(
        self, request: TeamRequest, channel: str, client_id: str, replay_id: str
    ) -> HttpResponse:
        """Stop it; deliveries that it has already queued are still sent."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        row = policy.replay_of(webhook, replay_id)
        try:
            replay.cancel(
                row.id,
                request.principal.because(request.POST.get("reason", "")[:500]),
                now=clock.now(),
            )
        except BrokerError as error:
            messages.error(request, error.detail)
        else:
            messages.success(
                request, "Cancelled. Deliveries that are already queued are still sent."
            )
        return redirect("webhooks:replay", request.team.slug, channel, client_id, replay_id)


def _filter(request: TeamRequest, webhook: Consumer) -> ReplayFilter:
    """Return the filter of the URL. Raises Invalid."""
    query: QueryDict = request.GET
    if selected := query.getlist("id"):
        wanted = replay.parse({"ids": selected})
    else:
        wanted = ReplayFilter.of(DEAD_LETTERS.read(DEAD_LETTERS.given(query)))
    return wanted.within(webhook.channel.slug, webhook.client_id)


def _shown(row: Replay) -> dict[str, Any]:
    return {
        "id": _public(row),
        "row": row,
        "matched": row.total_count,
        "is_running": row.state == Replay.State.RUNNING,
    }


def _public(row: Replay) -> str:
    return ids.to_public(ids.REPLAY, row.id)
