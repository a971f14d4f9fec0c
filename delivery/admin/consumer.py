"""Extend the admin page of a consumer: its health, its leases and its workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from unfold.views import ChangeList

from channels_app.admin import base
from channels_app.admin.base import WithPageContext, display
from channels_app.admin.consumer import ConsumerAdmin
from channels_app.admin.filters import ChoicesDropdownFilter
from channels_app.database import clock
from channels_app.database.raw import by_index
from channels_app.models import Consumer
from delivery.admin import queue
from delivery.admin.ordering_key import state_of
from delivery.admin.queue import MoveActions
from delivery.core.lifecycle import DeliveryState
from delivery.models import ConsumerHealth, Counter, Delivery, OrderingKey, PullWorker, PumpSlot

Circuit = ConsumerHealth.Circuit
TONE = {Circuit.CLOSED: "good", Circuit.OPEN: "bad"}
MAX_SHOWN = 50
WORKERS_SHOWN = 10
"""Workers on a page of their table."""
UNKNOWN = "a worker that is not known any more"
KEYS_SHOWN = 5
"""Ordering keys on the page: those whose head has waited longest."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One lease on the consumer's page."""

    delivery: str
    url: str
    worker: str
    until: datetime | None
    is_over: bool
    """Whether it has expired, so that the next receive takes the message."""


def is_pulled(delivery: Delivery) -> bool:
    """Whether a worker of a pull consumer holds it, or let its lease expire."""
    in_flight = delivery.state == DeliveryState.IN_FLIGHT
    return in_flight and delivery.lease_owner is not None and delivery.lease_owner < 0


def holder(delivery: Delivery) -> str:
    """Return its holder: a worker by its own name, or a pump."""
    if delivery.lease_owner is None:
        return base.NONE
    if delivery.lease_owner < 0:
        worker = PullWorker.objects.filter(id=delivery.lease_owner).first()
        return worker.name if worker else UNKNOWN
    pump = PumpSlot.objects.filter(generation=delivery.lease_owner).first()
    return str(pump) if pump else "a pump that is gone"


def of_consumer(consumer: Consumer) -> Sequence[LeaseRow]:
    """Return active and expired leases, the newest deliveries first."""
    rows = by_index(Delivery.objects.filter(consumer=consumer), "delivery_list")
    held = rows.filter(state=DeliveryState.IN_FLIGHT.value).order_by("-id")[:MAX_SHOWN]
    now = clock.now()
    leased = [(row, row.lease_owner or 0) for row in held if is_pulled(row)]
    workers = PullWorker.objects.in_bulk({owner for _, owner in leased})
    return [
        LeaseRow(
            delivery=str(row),
            url=reverse("admin:delivery_delivery_change", args=[row.pk]),
            worker=workers[owner].name if owner in workers else UNKNOWN,
            until=row.due_at,
            is_over=row.due_at is not None and row.due_at <= now,
        )
        for row, owner in leased
    ]


admin.site.unregister(Consumer)


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
    list_display = (*ConsumerAdmin.list_display, "failing", "waiting", "dead")
    list_filter = (*ConsumerAdmin.list_filter, ("health__circuit", ChoicesDropdownFilter))
    search_help_text = "client id, address, channel or worker"
    actions_detail = ("redrive", "stop_moving", *ConsumerAdmin.actions_detail)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Use the list with counts."""
        return CountedChangeList

    def get_search_fields(self, request: HttpRequest) -> Sequence[str]:
        """Find a consumer also by its workers."""
        may_see = request.user.has_perm("delivery.view_pullworker")
        return (*super().get_search_fields(request), *(["workers__name"] if may_see else []))

    @display(description="Failures in a row", ordering="health__consecutive_failures")
    def failing(self, consumer: Consumer) -> str:
        """How many attempts failed since the last success, and since when."""
        health = getattr(consumer, "health", None)
        if health is None or not health.consecutive_failures:
            return base.NONE
        since = base.instant(health.failing_since, exact=False)
        return format_html("{} since {}", intcomma(health.consecutive_failures), since)

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
            "leases": of_consumer(row),
            "workers": Paginator(row.workers.order_by("-seen_at", "id"), WORKERS_SHOWN).get_page(
                request.GET.get("workers")
            ),
            "key_rows": _key_rows(row),
            "keys_url": _keys_url(row),
            **queue.page_context(row),
        }


def _facts(
    consumer: Consumer, health: ConsumerHealth, now: datetime
) -> list[tuple[str, SafeString | str]]:
    """Return the facts of its health that apply."""
    circuit = Circuit(health.circuit)
    facts: list[tuple[str, SafeString | str]] = [
        ("Health", base.label(*consumer.condition[:2])),
        ("Circuit", base.label(circuit.value, TONE[circuit])),
        ("Opened", f"{intcomma(health.opened_count)} times"),
    ]
    if health.failing_since:
        facts.append(("Failing since", base.instant(health.failing_since, exact=False)))
        facts.append(("Failures in a row", intcomma(health.consecutive_failures)))
    if circuit is Circuit.OPEN:
        facts.append(("Next probe", base.instant(health.next_probe_at, exact=False)))
    if health.slow_until and health.slow_until > now:
        facts.append(("Slow until", base.instant(health.slow_until, exact=False)))
    return [
        *facts,
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


def _key_rows(consumer: Consumer) -> list[tuple[OrderingKey, SafeString]]:
    """Return the ordering keys whose head has waited longest, with their states."""
    rows = OrderingKey.objects.filter(consumer=consumer).order_by("head_at")[:KEYS_SHOWN]
    return [(key_row, state_of(key_row)) for key_row in rows]


def _keys_url(consumer: Consumer) -> str:
    """Return the URL of all its ordering keys."""
    query = urlencode({"q": f"{consumer.channel.slug}/{consumer.client_id}"})
    return f"{reverse('admin:delivery_orderingkey_changelist')}?{query}"
