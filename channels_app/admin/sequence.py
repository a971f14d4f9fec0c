"""Define the admin pages of producers' sequences: the expected, waiting and skipped numbers."""

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import Truncator

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.admin.page_context import WithPageContext
from channels_app.models import Channel, EarlyNumber, Sequence

SHORT = 60
"""Characters of an ordering key in a list."""
MAX_SHOWN = 20


@admin.register(Sequence)
class SequenceAdmin(WithPageContext, base.BigList):
    """Ordering keys whose messages a producer numbers."""

    list_before_template = "channels_app/sequences_top.html"
    list_fetched = ("channel", "producer")
    list_display = ("key_short", "channel_name", "producer_name", "due", "skipped", "heard")
    search_fields = ("id",)
    search_help_text = "name of a channel"
    fields = (
        ("key", "restarts"),
        ("channel_name", "producer_name"),
        ("due", "waiting"),
        ("skipped", "gap"),
        ("gap_at", "heard"),
    )
    readonly_fields = (
        *("key", "restarts", "channel_name", "producer_name"),
        *("due", "waiting", "skipped", "gap", "gap_at", "heard"),
    )

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """Whether to show what to do while there are no sequences."""
        return {"none": not Sequence.objects.exists()}

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Sequences of a channel."""
        term = search_term.strip()
        if not term:
            return queryset, False
        channel = Channel.objects.filter(slug=term).first()
        return (queryset.filter(channel_id=channel.pk) if channel else queryset.none()), False

    @display(description="Ordering key")
    def key(self, row: Sequence) -> str:
        """The ordering key of its messages."""
        return base.mono(row.ordering_key)

    @display(description="Ordering key")
    def key_short(self, row: Sequence) -> str:
        """The ordering key, shortened."""
        return base.mono(Truncator(row.ordering_key).chars(SHORT))

    @display(description="Channel")
    def channel_name(self, row: Sequence) -> str:
        """Link to the channel."""
        url = reverse("admin:channels_app_channel_change", args=[row.channel_id])
        return base.linked(url, row.channel.slug)

    @display(description="Producer")
    def producer_name(self, row: Sequence) -> str:
        """Link to the producer."""
        if row.producer is None:
            return base.NONE
        url = reverse("admin:channels_app_producer_change", args=[row.producer_id])
        return base.linked(url, str(row.producer))

    @display(description="Expected next")
    def due(self, row: Sequence) -> str:
        """The number expected next."""
        return f"{row.expected:,}"

    @display(description="Restarted")
    def restarts(self, row: Sequence) -> str:
        """How many times its producer sent a 0."""
        return f"{row.epoch:,}"

    @display(description="Waiting numbers")
    def waiting(self, row: Sequence) -> str:
        """Numbers that arrived early."""
        rows = EarlyNumber.objects.filter(sequence_id=row.pk, until__gt=clock.now())
        found = list(rows.order_by("number").values_list("number", flat=True)[: MAX_SHOWN + 1])
        more = " and more" if len(found) > MAX_SHOWN else ""
        return ", ".join(f"{number:,}" for number in found[:MAX_SHOWN]) + more or base.NONE

    @display(description="Skipped")
    def skipped(self, row: Sequence) -> str:
        """How many numbers were skipped."""
        return f"{row.skipped_count:,}"

    @display(description="Last gap")
    def gap(self, row: Sequence) -> str:
        """The numbers that were skipped last."""
        if row.skipped_from is None or row.skipped_to is None:
            return base.NONE
        many = f" to {row.skipped_to:,}" if row.skipped_to > row.skipped_from else ""
        return f"{row.skipped_from:,}{many}"

    @display(description="Skipped at")
    def gap_at(self, row: Sequence) -> str:
        """When the last gap was skipped."""
        return base.instant(row.skipped_at)

    @display(description="Last message")
    def heard(self, row: Sequence) -> str:
        """When the last number arrived."""
        return base.instant(row.touched_at, exact=False)


@admin.register(EarlyNumber)
class EarlyNumberAdmin(WithPageContext, base.BigList):
    """Messages that wait for lower numbers of their ordering key."""

    list_before_template = "channels_app/early_top.html"
    list_display = ("number", "sequence", "over")
    fields = (("number", "sequence"), "over")
    readonly_fields = ("sequence", "over")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Annotate the channel and the ordering key in the same query."""
        of = Sequence.objects.filter(pk=OuterRef("sequence_id"))
        rows: QuerySet[Any] = (
            super()
            .get_queryset(request)
            .annotate(
                slug=Subquery(of.values("channel__slug")), key=Subquery(of.values("ordering_key"))
            )
        )
        return rows

    @display(description="Channel / ordering key")
    def sequence(self, row: EarlyNumber) -> str:
        """Link to the sequence."""
        slug, key = row.slug, row.key  # type: ignore[attr-defined]  # annotated
        if slug is None:
            return base.NONE
        url = reverse("admin:channels_app_sequence_change", args=[row.sequence_id])
        return base.linked(url, f"{slug} / {Truncator(key).chars(SHORT)}")

    @display(description="Waits until")
    def over(self, row: EarlyNumber) -> str:
        """When it is stored without the missing ones."""
        return base.instant(row.until)
