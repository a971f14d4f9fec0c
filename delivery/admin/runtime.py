"""Admin pages of the running machinery: pumps, consumers' health, sweeps and counters."""

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
    """Who pumps right now."""

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
        """Whether it had a heartbeat lately."""
        lives = slot.heartbeat_at >= clock.now() - timedelta(seconds=STALE_AFTER_S)
        return base.label("alive", "good") if lives else base.label("gone", "bad")

    @display(description="Heartbeat")
    def beat(self, slot: PumpSlot) -> str:
        """Its last sign of life."""
        return base.instant(slot.heartbeat_at)

    @display(description="Clock")
    def clock_offset(self, slot: PumpSlot) -> str:
        """How far its host's clock is from the database's."""
        if not slot.clock_offset_ms:
            return "agrees with the database's"
        return f"{slot.clock_offset_ms / 1000:+.1f} s from the database's"

    @display(description="Started")
    def started(self, slot: PumpSlot) -> str:
        """Since when it runs."""
        return base.instant(slot.started_at)


@admin.register(ConsumerHealth)
class ConsumerHealthAdmin(base.ReadOnly):
    """What delivery learnt of each consumer."""

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
        """How it is doing, as the portal says it."""
        return base.label(*health.consumer.condition[:2])

    @display(description="Circuit", ordering="circuit")
    def state(self, health: ConsumerHealth) -> str:
        """Whether it is called at all."""
        return base.label(health.circuit.replace("_", " "), TONE[Circuit(health.circuit)])

    @display(description="Failing since", ordering="failing_since")
    def failing(self, health: ConsumerHealth) -> str:
        """Since when nothing arrived."""
        return base.instant(health.failing_since)

    @display(description="Last success", ordering="last_success_at")
    def succeeded(self, health: ConsumerHealth) -> str:
        """When something last arrived."""
        return base.instant(health.last_success_at)

    @display(description="Last failure", ordering="last_failure_at")
    def failed(self, health: ConsumerHealth) -> str:
        """When something last failed."""
        return base.instant(health.last_failure_at)

    @display(description="Next probe")
    def probe(self, health: ConsumerHealth) -> str:
        """When an open circuit is tried again."""
        return base.instant(health.next_probe_at)

    @display(description="Slow until")
    def slow(self, health: ConsumerHealth) -> str:
        """Until when it asked to be spared."""
        return base.instant(health.slow_until)


@admin.register(SweepRun)
class SweepRunAdmin(base.ReadOnly):
    """Fail-safes and housekeeping: when each ran and what it found."""

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
        """Whether its last run went well."""
        return base.label("failed", "bad") if sweep.last_error else base.label("fine", "good")

    @display(description="Last run", ordering="last_started_at")
    def started(self, sweep: SweepRun) -> str:
        """When it last began."""
        return base.instant(sweep.last_started_at)

    @display(description="Next run", ordering="next_at")
    def following(self, sweep: SweepRun) -> str:
        """When it begins next."""
        return base.instant(sweep.next_at)


@admin.register(Counter)
class CounterAdmin(base.ReadOnly):
    """Shares of the exact counts; they are summed on read."""

    list_display = ("consumer_id", "state", "slot", "count")
    search_fields = ("consumer_id",)
    search_help_text = "number of the consumer"
    ordering = ("id",)
    show_full_result_count = False
    paginator = base.InfinitePaginator

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """The shares of one consumer."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return (queryset.filter(consumer_id=term) if term.isdecimal() else queryset.none()), False
