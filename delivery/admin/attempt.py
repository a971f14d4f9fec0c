"""Show attempts in the console, read-only."""

from typing import Any

from django.contrib import admin
from django.db.models import Prefetch, QuerySet, prefetch_related_objects
from django.http import HttpRequest
from django.urls import reverse

from channels_app.admin import base, body
from channels_app.admin.base import display
from channels_app.admin.choices import DropdownFilter, Since
from channels_app.admin.page_context import WithPageContext
from channels_app.rules import ids
from channels_app.steps import note_opening
from delivery.admin.timeline import timings
from delivery.models import Attempt, Delivery
from delivery.rules.outcome import Outcome


class OutcomeFilter(DropdownFilter):
    """Filter the newest attempts by outcome, which has no index."""

    title = f"outcome (of the newest {base.WINDOW:,})"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """All outcomes."""
        return [(outcome.value, outcome.value.replace("_", " ")) for outcome in Outcome]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Attempt]) -> QuerySet[Attempt]:
        """Attempts with the chosen outcome."""
        wanted = self.value()
        return base.newest(queryset).filter(outcome=wanted) if wanted else queryset


@admin.register(Attempt)
class AttemptAdmin(WithPageContext, base.BigList):
    """Attempts, newest first."""

    id_prefix = ids.ATTEMPT
    list_display = (
        "name",
        "started",
        "shown_delivery",
        "number",
        "ended",
        "status_code",
        "took",
        "remote_address",
    )
    list_filter = (OutcomeFilter, Since)
    search_fields = ("id",)
    search_help_text = "att_… or dlv_… (the whole id)"
    fields = (
        ("name", "shown_delivery"),
        ("number", "started"),
        ("ended", "status_code"),
        ("where", "remote_address"),
        "said",
        "answer_headers",
        "answer",
        "worker",
    )
    readonly_fields = (
        "name",
        "shown_delivery",
        "started",
        "ended",
        "where",
        "said",
        "answer_headers",
        "answer",
    )

    def get_fields(self, request: HttpRequest, obj: Attempt | None = None) -> Any:
        """Omit the response's bytes for users who may not see bodies."""
        fields = super().get_fields(request, obj)
        if obj is not None and body.may_see(request, obj.delivery.channel):
            return fields
        # The worker's message about an encrypted body is part of the response.
        shown = ["error" if name == "said" else name for name in fields]
        return [name for name in shown if name not in ("answer", "answer_headers")]

    def row_context(self, request: HttpRequest, row: Attempt) -> dict[str, Any]:
        """No context. Views of a response are written to the audit log."""
        # One query for the permission check and for the audit log's names.
        prefetch_related_objects(
            [row], Prefetch("delivery", Delivery.objects.select_related("channel", "consumer"))
        )
        if body.may_see(request, row.delivery.channel):
            note_opening.note(
                base.actor(request),
                f"delivery:{row.delivery}",
                "answers",
                team_id=row.delivery.consumer.team_id,
            )
        return {}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Attempt], search_term: str
    ) -> tuple[QuerySet[Attempt], bool]:
        """Find the attempt with an id, or the attempts of a delivery's id."""
        term = search_term.strip().lower()
        if not term:
            return queryset, False
        attempt, delivery = (ids.from_public(kind, term) for kind in (ids.ATTEMPT, ids.DELIVERY))
        if attempt is not None:
            return queryset.filter(pk=attempt), False
        if delivery is None:
            return queryset.none(), False
        return queryset.filter(delivery_id=delivery).order_by("-number"), False

    @display(description="Attempt")
    def name(self, attempt: Attempt) -> str:
        """Its public id."""
        return base.public_id(ids.to_public(ids.ATTEMPT, attempt.pk))

    @display(description="Delivery")
    def shown_delivery(self, attempt: Attempt) -> str:
        """Link to its delivery."""
        url = reverse("admin:delivery_delivery_change", args=[attempt.delivery_id])
        return base.linked(url, ids.to_public(ids.DELIVERY, attempt.delivery_id))

    @display(description="Started")
    def started(self, attempt: Attempt) -> str:
        """When the request began."""
        return base.instant(attempt.started_at)

    @display(description="Outcome")
    def ended(self, attempt: Attempt) -> str:
        """Its outcome."""
        outcome = Outcome(attempt.outcome)
        return base.label(outcome.words, outcome.tone)

    @display(description="Took")
    def took(self, attempt: Attempt) -> str:
        """Duration of the whole exchange."""
        return f"{attempt.total_ms:,} ms"

    @display(description="Timings")
    def where(self, attempt: Attempt) -> str:
        """Durations of its phases."""
        return timings(attempt)

    @display(description="Error")
    def said(self, attempt: Attempt) -> str:
        """Its error."""
        return attempt.answer.error or base.NONE

    @display(description="Answer headers")
    def answer_headers(self, attempt: Attempt) -> str:
        """Status line and headers of the response."""
        return base.mono(attempt.answer.headers)

    @display(description="Answer")
    def answer(self, attempt: Attempt) -> str:
        """First bytes of the response as text."""
        return base.mono(attempt.answer.body.decode("utf-8", errors="replace"))
