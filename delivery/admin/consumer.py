"""Show a consumer's circuit, counts and leases above its settings in the console."""

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from unfold.views import ChangeList

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.admin.consumer import ConsumerAdmin
from channels_app.admin.page_context import WithPageContext
from channels_app.models import Consumer
from delivery.admin import leases, queue
from delivery.admin.lane import state_of
from delivery.admin.queue import MoveActions
from delivery.admin.runtime import TONE, Circuit
from delivery.models import ConsumerHealth, Counter, Lane
from delivery.rules.lifecycle import DeliveryState

admin.site.unregister(Consumer)

LANES_SHOWN = 5
"""Ordering keys on the page: those whose head has waited longest."""


class CountedChangeList(ChangeList):
    """A list that reads the counts of all its rows in one query."""

    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        """Read the page's rows and their counts."""
        super().get_results(request)
        rows = list(self.result_list)
        counts = Counter.read([row.pk for row in rows])
        for row in rows:
            row.counted = counts[row.pk]
        self.result_list = rows


@admin.register(Consumer)
class WatchedConsumerAdmin(MoveActions, WithPageContext, ConsumerAdmin):
    """Consumers with settings and state; pull consumers also as queues."""

    change_form_outer_before_template = "delivery/consumer.html"
    list_display = (*ConsumerAdmin.list_display, "waiting", "dead")
    actions_detail = ("redrive", "stop_moving", *ConsumerAdmin.actions_detail)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Use the list with counts."""
        return CountedChangeList

    @display(description="Waiting")
    def waiting(self, consumer: Consumer) -> str:
        """Number of deliveries to send, or to receive."""
        return _count(consumer, DeliveryState.QUEUED)

    @display(description="Dead")
    def dead(self, consumer: Consumer) -> str:
        """Number of its dead letters."""
        return _count(consumer, DeliveryState.DEAD)

    def row_context(self, request: HttpRequest, row: Consumer) -> dict[str, Any]:
        """Its circuit, counts and leases."""
        health: ConsumerHealth | None = getattr(row, "health", None)
        return {
            "facts": _facts(row, health, clock.now()) if health else [],
            "counts": _counts(row.pk),
            "health": health,
            "is_pull": row.mode == Consumer.Mode.PULL,
            "leases": leases.of_consumer(row),
            "lanes": _lanes(row),
            "lanes_url": _lanes_url(row),
            **queue.page_context(row),
        }


def _facts(
    consumer: Consumer, health: ConsumerHealth, now: datetime
) -> list[tuple[str, SafeString | str]]:
    """Return the facts of its health that apply."""
    circuit = Circuit(health.circuit)
    found: list[tuple[str, SafeString | str]] = [
        ("Health", base.label(*consumer.condition[:2])),
        ("Circuit", base.label(circuit.value, TONE[circuit])),
    ]
    if health.failing_since:
        found.append(("Failing since", base.instant(health.failing_since, exact=False)))
        found.append(("Failures in a row", intcomma(health.consecutive_failures)))
    if circuit is Circuit.OPEN:
        found.append(("Next probe", base.instant(health.next_probe_at, exact=False)))
    if health.slow_until and health.slow_until > now:
        found.append(("Slow until", base.instant(health.slow_until, exact=False)))
    return [
        *found,
        ("Last outcome", health.last_outcome.replace("_", " ") or base.NONE),
        ("Last success", base.instant(health.last_success_at, exact=False)),
        ("Last failure", base.instant(health.last_failure_at, exact=False)),
    ]


def _counts(consumer_id: int) -> list[tuple[str, str, str]]:
    """Return for each state its label, exact number, and the URL of its list."""
    counts = Counter.read([consumer_id])[consumer_id]
    url = f"{reverse('admin:delivery_delivery_changelist')}?consumer={consumer_id}"
    return [
        (state.value.replace("_", " "), intcomma(counts[state]), f"{url}&state={state.value}")
        for state in DeliveryState
    ]


def _count(consumer: Any, state: DeliveryState) -> str:
    """Return a number of a row, linked to these deliveries."""
    number = consumer.counted[state.value]
    if not number:
        return base.fill('<span class="hs-note">{}</span>', "0")
    url = f"{reverse('admin:delivery_delivery_changelist')}?consumer={consumer.pk}"
    return base.linked(f"{url}&state={state.value}", intcomma(number))


def _lanes(consumer: Consumer) -> list[tuple[Lane, SafeString]]:
    """Return the ordering keys whose head has waited longest, with their states."""
    rows = Lane.objects.filter(consumer=consumer).order_by("head_at")[:LANES_SHOWN]
    return [(lane, state_of(lane)) for lane in rows]


def _lanes_url(consumer: Consumer) -> str:
    """Return the URL of all its ordering keys."""
    query = urlencode({"q": f"{consumer.channel.slug}/{consumer.client_id}"})
    return f"{reverse('admin:delivery_lane_changelist')}?{query}"
