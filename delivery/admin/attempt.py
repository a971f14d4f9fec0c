"""Define the admin pages of attempts, and show a delivery's request and timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import Prefetch, QuerySet, prefetch_related_objects
from django.http import HttpRequest
from django.urls import reverse

from channels_app.admin import base, body
from channels_app.admin.base import WithPageContext, display
from channels_app.admin.filters import DropdownFilter, Since
from channels_app.core import ids
from channels_app.models import Consumer, Message
from channels_app.registry import data_encryption, viewing
from delivery.conf import conf
from delivery.core import signing
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery

NOT_KEPT = {"webhook-signature", "hookstation-attempt", "hookstation-max-attempts"}
"""Headers that cannot be restored for a past attempt: its secret and its attempt budget may have
changed."""
MAX_SHOWN = 50
"""Attempts on the page, the newest ones."""


def headers(
    delivery: Delivery, message: Message, consumer: Consumer, at: datetime
) -> list[tuple[str, str]]:
    """Return an attempt's headers, without the consumer's own, which may be secrets."""
    built = signing.build(
        signing.Envelope(
            message_id=ids.to_public(ids.MESSAGE, message.id),
            timestamp=int(at.timestamp()),
            signature="",
            channel=delivery.channel.slug,
            consumer=consumer.client_id,
            priority=delivery.priority,
            attempt=1,
            max_attempts=1,
            accepted_at=delivery.accepted_at,
            user_agent=conf().user_agent,
            content_type=message.content_type,
            event_type=delivery.event_type,
            ordering_key=delivery.ordering_key,
            forwarded=data_encryption.headers_of(message),
        )
    )
    return [(name, value) for name, value in built if name.lower() not in NOT_KEPT]


def text(delivery: Delivery, message: Message, consumer: Consumer, at: datetime) -> str:
    """Return the request as text, as it was on the wire."""
    lines = [f"POST {consumer.url}"]
    lines += [f"{name}: {value}" for name, value in headers(delivery, message, consumer, at)]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An attempt, the acceptance of the message, or the next step."""

    tone: str
    title: str
    at: datetime | None
    detail: str = ""
    """One sentence."""
    timings: str = ""
    attempt: Attempt | None = None
    request: str = ""
    """The request without its body."""
    answer: str = ""
    """Status line, headers and the first bytes of the response as text."""


def moments(delivery: Delivery, *, hidden: str) -> Sequence[TimelineEvent]:
    """Return events from acceptance until now; the oldest attempts beyond MAX_SHOWN are left out.

    ``hidden`` explains why headers and responses are hidden, since they may repeat the request; ''
    shows them.
    """
    newest = delivery.attempts.order_by("-number")[:MAX_SHOWN]
    attempts = [_of(delivery, attempt, hidden=hidden) for attempt in reversed(newest)]
    return [TimelineEvent("calm", "Accepted", delivery.accepted_at), *attempts, *_ahead(delivery)]


def timings(attempt: Attempt) -> str:
    """Describe its duration and phases."""
    parts = [
        f"{name} {value} ms"
        for name, value in (("connect", attempt.connect_ms), ("first byte", attempt.first_byte_ms))
        if value is not None
    ]
    return ", ".join([*parts, f"total {attempt.total_ms} ms"])


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
            viewing.note(
                base.principal(request),
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


def _of(delivery: Delivery, attempt: Attempt, *, hidden: str) -> TimelineEvent:
    outcome, response = Outcome(attempt.outcome), attempt.answer
    excerpt, headers = response.body.decode("utf-8", errors="replace"), response.headers.strip()
    sent = text(delivery, delivery.message, delivery.consumer, attempt.started_at)
    if hidden:
        sent, headers = hidden, ""
        excerpt = hidden if excerpt else ""
    return TimelineEvent(
        tone=outcome.tone,
        title=outcome.words,
        at=attempt.started_at,
        # The worker's message about an encrypted body is part of the response.
        detail=attempt.error if hidden else response.error,
        timings=timings(attempt),
        attempt=attempt,
        request=sent,
        answer="\n\n".join(part for part in (headers, excerpt) if part),
    )


def _ahead(delivery: Delivery) -> list[TimelineEvent]:
    if delivery.due_at is None:
        return []
    if delivery.state == "in_flight":
        return [TimelineEvent("wait", "In flight", delivery.due_at, "Its worker has until then.")]
    if delivery.state == "awaiting_ack":
        return [
            TimelineEvent("wait", "Awaits its ack", delivery.due_at, "The consumer has until then.")
        ]
    if delivery.is_behind:
        return [
            TimelineEvent(
                "wait", "Next", None, "It waits for an earlier delivery of its ordering key."
            )
        ]
    return [TimelineEvent("wait", "Next", delivery.due_at, "Not sent before this instant.")]
