"""Define the admin pages of pumps, sweeps and traffic."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.contrib import admin
from django.http import HttpRequest

from channels_app.admin import base
from channels_app.admin.base import WithPageContext, display
from channels_app.admin.filters import ChoicesDropdownFilter
from channels_app.database import clock
from delivery.core.timing import BOUNDS_MS, in_words, quantile_ms
from delivery.models import ConsumerHealth, PumpSlot, SweepRun, Traffic
from delivery.models.traffic import ALL
from delivery.processes.registration import STALE_AFTER_S

Circuit = ConsumerHealth.Circuit
TONE = {Circuit.CLOSED: "good", Circuit.OPEN: "bad"}


@admin.register(PumpSlot)
class PumpSlotAdmin(base.ReadOnly):
    """Registered pumps."""

    list_display = ("name", "alive", "host", "pid", "in_flight", "beat", "started")
    ordering = ("kind", "cluster", "ordinal")
    fields = (
        ("name", "alive"),
        ("host", "pid"),
        ("cluster", "generation"),
        ("in_flight", "wake_address"),
        ("started", "beat", "clock_offset"),
    )
    readonly_fields = ("name", "alive", "beat", "started", "clock_offset")

    @display(description="Place")
    def name(self, slot: PumpSlot) -> str:
        """Kind and number."""
        return f"{slot.kind} {slot.ordinal}"

    @display(description="State")
    def alive(self, slot: PumpSlot) -> str:
        """Whether it had a recent heartbeat."""
        lives = slot.heartbeat_at >= clock.now() - timedelta(seconds=STALE_AFTER_S)
        return base.label("alive", "good") if lives else base.label("gone", "bad")

    @display(description="Heartbeat")
    def beat(self, slot: PumpSlot) -> str:
        """Its last heartbeat."""
        return base.instant(slot.heartbeat_at)

    @display(description="Clock")
    def clock_offset(self, slot: PumpSlot) -> str:
        """Difference between its host's clock and the database's."""
        if not slot.clock_offset_ms:
            return "agrees with the database's"
        return f"{slot.clock_offset_ms / 1000:+.1f} s from the database's"

    @display(description="Started")
    def started(self, slot: PumpSlot) -> str:
        """When it started."""
        return base.instant(slot.started_at)


@admin.register(ConsumerHealth)
class ConsumerHealthAdmin(base.ReadOnly):
    """The observed health of each consumer."""

    list_display = (
        "consumer",
        "channel",
        "health",
        "state",
        "consecutive_failures",
        "failing",
        "last_outcome",
        "succeeded",
    )
    list_select_related = ("consumer__channel",)
    list_filter = (("circuit", ChoicesDropdownFilter),)
    search_fields = ("consumer__client_id", "consumer__channel__slug")
    ordering = ("-consecutive_failures", "consumer_id")
    fields = (
        ("consumer", "state"),
        ("consecutive_failures", "opened_count"),
        ("failing", "last_outcome"),
        ("succeeded", "failed"),
        ("probe", "slow"),
    )
    readonly_fields = ("state", "failing", "succeeded", "failed", "probe", "slow")

    @display(description="Channel")
    def channel(self, health: ConsumerHealth) -> str:
        """Its channel."""
        return health.consumer.channel.slug

    @display(description="Health")
    def health(self, health: ConsumerHealth) -> str:
        """Its status, in the portal's words."""
        return base.label(*health.consumer.condition[:2])

    @display(description="Circuit", ordering="circuit")
    def state(self, health: ConsumerHealth) -> str:
        """State of its circuit."""
        return base.label(health.circuit.replace("_", " "), TONE[Circuit(health.circuit)])

    @display(description="Failing since", ordering="failing_since")
    def failing(self, health: ConsumerHealth) -> str:
        """Since when all attempts fail."""
        return base.instant(health.failing_since)

    @display(description="Last success", ordering="last_success_at")
    def succeeded(self, health: ConsumerHealth) -> str:
        """Its last successful attempt."""
        return base.instant(health.last_success_at)

    @display(description="Last failure", ordering="last_failure_at")
    def failed(self, health: ConsumerHealth) -> str:
        """Its last failed attempt."""
        return base.instant(health.last_failure_at)

    @display(description="Next probe")
    def probe(self, health: ConsumerHealth) -> str:
        """When an open circuit sends its next probe."""
        return base.instant(health.next_probe_at)

    @display(description="Slow until")
    def slow(self, health: ConsumerHealth) -> str:
        """Until when it asked to be called less (Retry-After)."""
        return base.instant(health.slow_until)


@admin.register(SweepRun)
class SweepRunAdmin(base.ReadOnly):
    """Sweeps, each with its last run and result."""

    list_display = ("name", "state", "started", "last_duration_ms", "last_count", "following")
    ordering = ("name",)
    fields = (
        "name",
        "state",
        "started",
        "last_duration_ms",
        "last_count",
        "following",
        "last_error",
    )
    readonly_fields = ("state", "started", "following")

    @display(description="State")
    def state(self, sweep: SweepRun) -> str:
        """Whether its last run succeeded."""
        return base.label("failed", "bad") if sweep.last_error else base.label("fine", "good")

    @display(description="Last run", ordering="last_started_at")
    def started(self, sweep: SweepRun) -> str:
        """When its last run began."""
        return base.instant(sweep.last_started_at)

    @display(description="Next run", ordering="next_at")
    def following(self, sweep: SweepRun) -> str:
        """When its next run is due."""
        return base.instant(sweep.next_at)


class Bucket(NamedTuple):
    """A histogram bucket with its count."""

    name: str
    number: int
    percent: float
    length: float
    """Length of its bar; the largest bucket has 100."""


@admin.register(Traffic)
class TrafficAdmin(WithPageContext, base.BigList):
    """The counts behind the charts."""

    list_display = ("begins", "span_s", "whose", "accepted", "delivered", "failed", "dead")
    list_filter = ("span_s",)
    search_fields = ("consumer_id",)
    search_help_text = "number of the consumer; 0 is all together"
    fields = (("begins", "span_s"), ("whose", "accepted"), ("delivered", "failed"), "dead")
    readonly_fields = ("begins", "whose")
    change_form_outer_after_template = "delivery/latency.html"

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the rows of one consumer."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return (queryset.filter(consumer_id=term) if term.isdecimal() else queryset.none()), False

    def row_context(self, request: HttpRequest, row: Traffic) -> dict[str, Any]:
        """Its latency histogram."""
        return {
            "quantiles": [
                (f"p{percent}", in_words(quantile_ms(row.latency, percent / 100)))
                for percent in (50, 95, 99)
            ],
            "buckets": buckets(row.latency),
        }

    @display(description="Beginning")
    def begins(self, traffic: Traffic) -> str:
        """When it begins."""
        return base.instant(traffic.begins_at, exact=False)

    @display(description="Consumer")
    def whose(self, traffic: Traffic) -> str:
        """Its consumer, or all consumers."""
        return "all" if traffic.consumer_id == ALL else str(traffic.consumer_id)


def buckets(counts: Sequence[int]) -> list[Bucket]:
    """Return buckets from the fastest to the slowest used one; empty without deliveries."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return []
    names = [f"up to {in_words(bound)}" for bound in BOUNDS_MS]
    names.append(f"over {in_words(BOUNDS_MS[-1])}")
    whole, most = sum(counts), max(counts)
    return [
        Bucket(names[place], counts[place], 100 * counts[place] / whole, 100 * counts[place] / most)
        for place in range(filled[0], filled[-1] + 1)
    ]
