"""Admin page of consumers, as delivery knows them: circuit and counts stand over the settings."""

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.consumer import ConsumerAdmin
from channels_app.models import Consumer
from delivery.admin import leases
from delivery.admin.runtime import TONE, Circuit
from delivery.models import ConsumerHealth, Counter
from delivery.rules.lifecycle import DeliveryState

admin.site.unregister(Consumer)


@admin.register(Consumer)
class WatchedConsumerAdmin(ConsumerAdmin):
    """Consumers: what they are set to, and how they do."""

    change_form_outer_before_template = "delivery/consumer.html"

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The consumer with its circuit and its counts."""
        consumer = self.get_object(request, object_id)
        more = {}
        if consumer is not None:
            health = ConsumerHealth.objects.filter(consumer=consumer).first()
            more = {
                "facts": _facts(health, clock.now()) if health else [],
                "counts": _counts(consumer.pk),
                "health": health,
                "is_pull": consumer.mode == Consumer.Mode.PULL,
                "leases": leases.of_consumer(consumer),
            }
        return super().change_view(request, object_id, form_url, more | (extra_context or {}))  # type: ignore[no-any-return]


def _facts(health: ConsumerHealth, now: datetime) -> list[tuple[str, SafeString | str]]:
    """What delivery learnt of it; without what is not so."""
    circuit = Circuit(health.circuit)
    found: list[tuple[str, SafeString | str]] = [
        ("Circuit", base.label(circuit.value, TONE[circuit]))
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
    """State, exact number, and the list of them."""
    counts = Counter.read([consumer_id])[consumer_id]
    url = f"{reverse('admin:delivery_delivery_changelist')}?consumer={consumer_id}"
    return [
        (state.value.replace("_", " "), intcomma(counts[state]), f"{url}&state={state.value}")
        for state in DeliveryState
    ]
