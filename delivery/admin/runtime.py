"""Show pumps, consumers' health, sweeps and counters in the console."""

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.admin.choices import ChoicesDropdownFilter
from delivery.models import ConsumerHealth, Counter, PumpSlot, SweepRun
from delivery.runtime.registration import STALE_AFTER_S

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


@admin.register(Counter)
class CounterAdmin(base.ReadOnly):
    """Shards of the exact counts; a read adds them up."""

    list_display = ("consumer_id", "state", "slot", "count")
    search_fields = ("consumer_id",)
    search_help_text = "number of the consumer"
    ordering = ("id",)
    show_full_result_count = False
    paginator = base.InfinitePaginator

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the shards of one consumer."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return (queryset.filter(consumer_id=term) if term.isdecimal() else queryset.none()), False
