"""What waits: moving a message to another instant, and taking it back, from its own page."""

from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from channels_app import clock
from channels_app.admin import base
from channels_app.conf import conf
from channels_app.rules import times
from delivery.models import Delivery
from delivery.rules.principal import Principal
from delivery.runtime import wakeups
from delivery.steps import cancel, reschedule

MAY = "channels_app.change_message"


def move(request: HttpRequest, object_id: int) -> HttpResponse:
    """Send it from another instant on; what cannot be read stands in the field again."""
    base.require(request.user.has_perm(MAY))
    page, typed, now = (
        _page(request, object_id),
        request.POST.get("due_at", "").strip(),
        clock.now(),
    )
    try:
        due_at = (
            now if "now" in request.POST else times.soon(typed, now, days=conf().max_future_days)
        )
    except ValueError as wrong:
        messages.error(request, f"{typed or 'Nothing'}: {wrong}")
        mark = "&" if "?" in page else "?"
        return redirect(f"{page}{mark}{urlencode({'due_at': typed})}")
    with base.telling(request, f"It is sent from {times.text(due_at)} on."):
        reschedule.reschedule(object_id, _principal(request), now=now, due_at=due_at)
        queued = Delivery.objects.filter(message_id=object_id, state="queued")
        wakeups.notify_pumps(queued.values_list("consumer_id", flat=True))
    return redirect(page)


def take_back(request: HttpRequest, object_id: int) -> HttpResponse:
    """Send it to nobody any more who does not have it yet."""
    base.require(request.user.has_perm(MAY))
    with base.telling(request, "What waited of it is cancelled."):
        cancel.cancel_message(object_id, _principal(request), now=clock.now())
    return redirect(_page(request, object_id))


def _page(request: HttpRequest, message_id: int) -> str:
    """The message's own page, or the timeline where that was asked from."""
    if (back := request.POST.get("back", "")).startswith("?"):
        return reverse("admin:timeline") + back
    return reverse("admin:channels_app_message_change", args=[message_id])


def _principal(request: HttpRequest) -> Principal:
    return Principal(base.actor(request), request.POST.get("reason", "")[:500])
