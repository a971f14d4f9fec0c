"""Show one delivery with request, response and timeline; replay or cancel it."""

import os

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect

from channels_app.core import access
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.portal.access import TeamRequest
from channels_app.registry import viewing
from delivery import replay
from delivery.core.lifecycle import FINISHED, DeliveryState
from delivery.portal import policy, presenters
from delivery.portal import presenters as requests
from delivery.portal.policy import WebhookView
from delivery.portal.views.webhook import tab
from delivery.queue import cancel

MAX_ATTEMPTS = 50
"""Maximum attempts on the page, the newest ones."""


class DeliveryView(WebhookView):
    """One delivery."""

    def get(
        self, request: TeamRequest, channel: str, client_id: str, delivery: str
    ) -> HttpResponse:
        """Show request, response and timeline."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        row = policy.delivery_of(webhook, delivery)
        newest = list(row.attempts.order_by("-number")[:MAX_ATTEMPTS])
        now = clock.now()
        hidden = policy.hidden(request, webhook)
        if not hidden:
            parts = ("body", "headers", "answers", "curl")
            viewing.note(request.principal, f"delivery:{row}", *parts)
        context = {
            "row": row,
            "hidden": hidden,
            "shown": presenters.delivery(row),
            "sent": requests.Sent(error=hidden)
            if hidden
            else requests.build(
                webhook,
                row,
                at=newest[0].started_at if newest else now,
                now=now,
                sign=access.includes(request.membership.role, self.writer),
            ),
            "last_answer": presenters.attempt(newest[0]) if newest and not hidden else None,
            "moments": presenters.timeline(row, newest[::-1], hidden=bool(hidden)),
            "left_out": max(0, row.attempt_count - len(newest)) if newest else 0,
            "may_replay": DeliveryState(row.state) in FINISHED,
            "may_cancel": row.state == DeliveryState.QUEUED,
        }
        return self.page("portal/webhooks/delivery.html", tab(webhook, "deliveries", context))


class DeliveryActionView(WebhookView):
    """Replay or cancel one delivery."""

    def post(
        self, request: TeamRequest, channel: str, client_id: str, delivery: str, action: str
    ) -> HttpResponse:
        """Run the action and show a message."""
        webhook = policy.webhook_of(request.team, channel, client_id)
        row = policy.delivery_of(webhook, delivery)
        step = replay.replay_one if action == "replay" else cancel.cancel_one
        principal = request.principal.because(request.POST.get("reason", "")[:500])
        try:
            step(row.id, principal, now=clock.now(), slot=os.getpid())
        except BrokerError as error:
            messages.error(request, error.detail)
        else:
            done = "Queued: it is sent now." if action == "replay" else "Cancelled."
            messages.success(request, done)
        return redirect("webhooks:delivery", request.team.slug, channel, client_id, delivery)
