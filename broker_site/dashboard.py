"""Provide the console's start page, its header badge and its search."""

from typing import Any

from django.conf import settings
from django.db.models.functions import Lower
from django.http import HttpRequest
from django.urls import reverse
from unfold.dataclasses import SearchResult

from broker_site import overview
from channels_app.core import ids
from channels_app.database.raw import dialect
from channels_app.models import Channel, Consumer, Producer
from delivery.models import Queue

FOUND = 10
"""Results per kind in the search."""
PAGES = (
    (ids.MESSAGE, "Message", "channels_app_message"),
    (ids.DELIVERY, "Delivery", "delivery_delivery"),
    (ids.ATTEMPT, "Attempt", "delivery_attempt"),
    (ids.REPLAY, "Replay", "delivery_replay"),
)


def environment(request: HttpRequest) -> list[str]:
    """The badge in the header, which tells installations apart."""
    if settings.DEBUG:
        return ["Debug", "danger"]
    if dialect.is_embedded:
        return ["Embedded", "info"]
    return ["Production", "success"]


def first_page(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add the overview to the context of the start page."""
    return context | overview.context(request)


def search(request: HttpRequest, term: str) -> list[SearchResult]:
    """Ctrl+K: find objects by public id or by the beginning of their name."""
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
        # The search term is in lower case, while queue names keep their case.
        named = Queue.objects.annotate(lower=Lower("name")).filter(lower__startswith=term)
        for queue in named[:FOUND]:
            url = reverse("admin:channels_app_consumer_change", args=[queue.consumer_id])
            found.append(SearchResult(queue.name, "Queue", url, "tag"))
    return found
