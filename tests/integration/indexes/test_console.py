"""Query plans of every console page: lists with each filter, search and order, and one row each."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.urls import reverse

from channels_app.models import Consumer
from delivery.models import Delivery, Replay
from tests.integration.indexes.judge import LARGE, judging
from tests.integration.indexes.world import World
from tests.support.console import list_url, operator, page_url
from tests.support.counts import public

pytestmark = pytest.mark.django_db(transaction=True)
CHOICES = 4
"""Number of choices to try of each filter of a large table."""


@pytest.mark.slow("explains every statement of the console")
def test_every_list_and_every_row(large: World) -> None:
    client = operator()
    terms = ["nothing", "4711", large.consumer.client_id, public(large.rows["dead"][0])]
    with judging() as judge:
        for model, page in admin.site._registry.items():
            judge.where = list_url(model)
            answer = client.get(judge.where)
            assert answer.status_code == 200
            is_large = model._meta.db_table in LARGE
            queries = [*filters(answer.context["cl"], CHOICES if is_large else 1)]
            if is_large:
                queries += [{"p": "2"}, *({"q": term} for term in terms)]
                queries += [{"o": f"-{place}"} for place in range(1, len(page.list_display) + 1)]
            for query in queries:
                judge.where = list_url(model, f"?{urlencode(query)}")
                # A page after the last one, or an order that a list lacks, redirects back.
                assert client.get(judge.where).status_code in {200, 302}, judge.where
            row = model._default_manager.order_by("-pk").first()
            if row is not None:
                judge.where = page_url(row)
                assert client.get(judge.where).status_code == 200
        for judge.where in pages_of_several_tables(large):
            assert client.get(judge.where).status_code == 200
        for judge.where in pages_of_a_queue(large):
            assert client.get(judge.where).status_code == 200
    judge.accept()


def pages_of_several_tables(large: World) -> list[str]:
    """Return the first page, the pages of a delivery and its message, and combined filters."""
    dead = large.rows["dead"][0]
    return [
        reverse("admin:index"),
        page_url(dead),
        page_url(dead.message),
        list_url(Delivery, "?state=dead&outcome=timeout&since=24"),
        list_url(Delivery, "?status_code=503"),
        list_url(Delivery, f"?channel={large.consumer.channel_id}&state=dead&status_code=503"),
        list_url(Delivery, f"?channel={large.consumer.channel_id}&state=queued"),
        reverse("admin:delivery_delivery_causes"),
        reverse("admin:usage"),
        *(f"{reverse('admin:timeline')}?span={span}" for span in ("hour", "day", "week", "year")),
        f"{reverse('admin:timeline')}?channel={large.consumer.channel_id}"
        "&after=2026-01-01T00:00:00Z~1",
        reverse("admin:health"),
        f"{reverse('admin:delivery_delivery_matching')}?consumer={large.consumer.pk}",
        f"{reverse('admin:delivery_delivery_matching')}?channel={large.consumer.channel_id}"
        "&outcome=timeout&since=24",
        f"{reverse('admin:delivery_delivery_matching')}?consumer={large.consumer.pk}&status_code=503",
        reverse("admin:delivery_replay_progress", args=[Replay.objects.latest("pk").pk]),
    ]


def pages_of_a_queue(large: World) -> list[str]:
    """Return pages of the largest consumer as a dead-letter queue, and of a move out of it."""
    queue = large.consumer
    Consumer.objects.filter(pk=queue.pk).update(mode="pull")
    Consumer.objects.filter(pk=large.others[1].pk).update(dead_letter_channel=queue.channel)
    return [
        list_url(Consumer, "?mode__exact=pull"),
        page_url(queue),
        reverse("admin:channels_app_consumer_move", args=[queue.pk]),
    ]


def filters(changes: Any, count: int) -> Iterator[dict[str, str]]:
    """Yield ``count`` choices of each filter of a list."""
    for spec in changes.filter_specs:
        found: list[dict[str, str]] = []
        name = getattr(spec, "parameter_name", None)
        if name and hasattr(spec, "lookup_choices"):
            found = [{name: str(value)} for value, _ in spec.lookup_choices]
        elif name:
            found = [{name: "a.b"}]
        elif hasattr(spec, "lookup_kwarg"):
            choices = getattr(spec, "lookup_choices", None) or [("1", "")]
            found = [{spec.lookup_kwarg: str(value)} for value, _ in choices]
        assert found or spec.expected_parameters(), f"how is {spec} tried?"
        yield from found[:count]
