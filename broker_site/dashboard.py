"""Dashboard: what the console shows on its first page, in its frame and in its search."""

from typing import Any

from django.conf import settings
from django.contrib.humanize.templatetags.humanize import intcomma
from django.db import connection
from django.http import HttpRequest
from django.urls import reverse
from unfold.dataclasses import SearchResult

from broker_site import backlog
from channels_app.models import Channel, Consumer, Producer
from channels_app.rules import ids
from delivery.rules.lifecycle import DeliveryState
from delivery.runtime import slots

CARDS = (
    (DeliveryState.QUEUED, "Queued", "wait for their first or next attempt"),
    (DeliveryState.IN_FLIGHT, "In flight", "are held by a worker right now"),
    (DeliveryState.AWAITING_ACK, "Awaiting ack", "received, not yet confirmed"),
    (DeliveryState.DELIVERED, "Delivered", "arrived"),
    (DeliveryState.DEAD, "Dead letters", "given up; they can be replayed"),
    (DeliveryState.CANCELLED, "Cancelled", "taken back or expired"),
)
FOUND = 10
"""Results of each kind that the search shows."""
PAGES = (
    (ids.MESSAGE, "Message", "channels_app_message"),
    (ids.DELIVERY, "Delivery", "delivery_delivery"),
    (ids.ATTEMPT, "Attempt", "delivery_attempt"),
    (ids.REPLAY, "Replay", "delivery_replay"),
)


def environment(request: HttpRequest) -> list[str]:
    """The badge in the header: what this installation is, so that nobody mistakes it."""
    if settings.DEBUG:
        return ["Debug", "danger"]
    if connection.vendor == "sqlite":
        return ["Embedded", "info"]
    return ["Production", "success"]


def overview(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The first page: how much is where, who delivers, and whether anything is late."""
    now = backlog.read()
    deliveries = reverse("admin:delivery_delivery_changelist")
    cards = [
        {
            "title": title,
            "text": text,
            "value": intcomma(now.by_state[state]),
            "link": f"{deliveries}?state={state}",
            "alarm": state is DeliveryState.DEAD and now.by_state[state] > 0,
        }
        for state, title, text in CARDS
    ]
    return context | {"cards": [*_vitals(now), *cards]}


def search(request: HttpRequest, term: str) -> list[SearchResult]:
    """Ctrl+K: public ids lead to their page, the beginning of a name to what bears it."""
    found = [
        SearchResult(term, title, reverse(f"admin:{page}_change", args=[number]), "tag")
        for prefix, title, page in PAGES
        if (number := ids.from_public(prefix, term)) is not None
    ]
    for model, name in ((Channel, "slug"), (Consumer, "client_id"), (Producer, "slug")):
        kind = model._meta.model_name
        if not request.user.has_perm(f"channels_app.view_{kind}"):
            continue
        page, title = f"admin:channels_app_{kind}_change", str(model._meta.verbose_name)
        for row in model._default_manager.filter(**{f"{name}__startswith": term})[:FOUND]:
            where = f"{title} of {row.channel}" if isinstance(row, Consumer) else title
            found.append(SearchResult(str(row), where, reverse(page, args=[row.pk]), "tag"))
    return found


def _vitals(now: backlog.Backlog) -> list[dict[str, Any]]:
    pumps = len(slots.living())
    late_s = backlog.oldest_due_s(now)
    pages = {
        "pumps": reverse("admin:delivery_pumpslot_changelist"),
        "counters": reverse("admin:delivery_counter_changelist"),
        "deliveries": reverse("admin:delivery_delivery_changelist") + "?state=queued",
    }
    return [
        {
            "title": "Living pumps",
            "value": pumps,
            "text": "deliver now" if pumps else "Nothing is delivered: start manage.py broker.",
            "link": pages["pumps"],
            "alarm": pumps == 0,
        },
        {
            "title": "Oldest due",
            "value": f"{late_s:.1f} s",
            "text": "kept waiting by nothing but the broker",
            "link": pages["deliveries"],
            "alarm": late_s > backlog.LATE_S,
        },
        {
            "title": "Accounting gap",
            "value": now.gap,
            "text": "made minus all states; must be 0",
            "link": pages["counters"],
            "alarm": now.gap != 0,
        },
    ]
