"""Show the leases of a pull consumer, and the holder of a delivery, in the console."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.admin.page_context import WithPageContext
from channels_app.models import Consumer
from channels_app.models.hints import by_index
from delivery.models import Delivery, PullWorker, PumpSlot
from delivery.rules.lifecycle import DeliveryState

MAX_SHOWN = 50
UNKNOWN = "a worker that is not known any more"


@dataclass(frozen=True, slots=True)
class Held:
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


def of_consumer(consumer: Consumer) -> Sequence[Held]:
    """Return active and expired leases, the newest deliveries first."""
    rows = by_index(Delivery.objects.filter(consumer=consumer), "delivery_list")
    held = rows.filter(state=DeliveryState.IN_FLIGHT.value).order_by("-id")[:MAX_SHOWN]
    now = clock.now()
    found = [(row, row.lease_owner or 0) for row in held if is_pulled(row)]
    workers = PullWorker.objects.in_bulk({owner for _, owner in found})
    return [
        Held(
            delivery=str(row),
            url=reverse("admin:delivery_delivery_change", args=[row.pk]),
            worker=workers[owner].name if owner in workers else UNKNOWN,
            until=row.due_at,
            is_over=row.due_at is not None and row.due_at <= now,
        )
        for row, owner in found
    ]


@admin.register(PullWorker)
class PullWorkerAdmin(WithPageContext, base.ReadOnly):
    """Workers of pull consumers; their leases are on the page of the consumer."""

    list_before_template = "delivery/workers_top.html"
    list_display = ("name", "consumer", "channel", "seen")
    list_select_related = ("consumer__channel",)
    search_fields = ("name", "consumer__client_id", "consumer__channel__slug")
    search_help_text = "worker, client id or channel"
    ordering = ("-seen_at", "id")
    fields = (("name", "seen"), ("consumer", "channel"), "keys")
    readonly_fields = ("channel", "seen", "keys")

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """A hint for an empty list."""
        return {"none": not PullWorker.objects.exists()}

    @display(description="Channel")
    def channel(self, worker: PullWorker) -> str:
        """Its consumer's channel."""
        return worker.consumer.channel.slug

    @display(description="Keeps its keys until")
    def keys(self, worker: PullWorker) -> str:
        """Until when its ordering keys are reserved for it."""
        return base.instant(worker.keys_until)

    @display(description="Last received", ordering="seen_at")
    def seen(self, worker: PullWorker) -> str:
        """When it last received a message, to within ten seconds."""
        return base.instant(worker.seen_at)
