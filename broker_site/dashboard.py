"""Dashboard: what the console shows on its first page, in its frame and in its search."""

from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models.functions import Lower
from django.http import HttpRequest
from django.urls import reverse
from unfold.dataclasses import SearchResult

from broker_site import overview
from channels_app.models import Channel, Consumer, Producer
from channels_app.rules import ids
from delivery.models import Queue

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


def first_page(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the first page shows beside its frame."""
    return context | overview.context(request)


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
    if request.user.has_perm("channels_app.view_consumer"):
        # The term comes in lower case, and a queue's name keeps its capitals.
        named = Queue.objects.annotate(lower=Lower("name")).filter(lower__startswith=term)
        for queue in named[:FOUND]:
            url = reverse("admin:channels_app_consumer_change", args=[queue.consumer_id])
            found.append(SearchResult(queue.name, "Queue", url, "tag"))
    return found
