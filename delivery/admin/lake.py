"""Show audits of lake and tables in the console, with a tick for each hour or day."""

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString

from channels_app.admin import base
from channels_app.admin.base import WithPageContext, display
from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Channel, Consumer, Message
from delivery.core.reconciliation import LAKE_EXPLANATIONS, remedy
from delivery.models import Attempt, Delivery, LakeAudit, LakeFinding
from pipeline.contract.results import DOUBLED, UNASKED

PAGES: dict[str, Any] = {
    ids.MESSAGE: (Message, "admin:channels_app_message_change"),
    ids.DELIVERY: (Delivery, "admin:delivery_delivery_change"),
    ids.ATTEMPT: (Attempt, "admin:delivery_attempt_change"),
}
CARDS = 100
NAMES = 20
"""Maximum ids on a card."""
Place = tuple[str, int, int]
"""Check, channel and consumer."""


@dataclass(slots=True)
class Card:
    """Findings of one check for one consumer or channel."""

    title: str
    count: int = 0
    meaning: str = ""
    remedy: str = ""
    since: datetime | None = None
    until: datetime | None = None
    names: list[str] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    """Name and URL; no URL for a row that is in no table any more."""

    @property
    def left(self) -> int:
        """Number of ids that are not shown."""
        return self.count - len(self.links)


@dataclass(frozen=True, slots=True)
class Tick:
    """One hour or day."""

    label: str
    title: str
    off: int
    messages: int


@admin.register(LakeAudit)
class LakeAuditAdmin(WithPageContext, base.ReadOnly):
    """Audits, newest first."""

    list_display = ("result", "from_", "to", "messages", "deliveries", "ended")
    ordering = ("-id",)
    sortable_by = ()
    list_before_template = "delivery/lake_top.html"
    fields = (
        ("result", "took"),
        ("from_", "to"),
        ("messages", "deliveries"),
        ("attempts", "ended"),
    )
    readonly_fields = (
        *("result", "from_", "to", "messages", "deliveries", "attempts", "took"),
        "ended",
    )
    change_form_outer_after_template = "delivery/lake_audit.html"

    def row_context(self, request: HttpRequest, row: LakeAudit) -> dict[str, Any]:
        """Its ticks and findings."""
        return _shown(row)

    @display(description="Result")
    def result(self, row: LakeAudit) -> SafeString:
        """Whether all rows were accounted for."""
        if row.gap:
            return base.label(f"{row.gap:,} off", "bad")
        return base.label("all accounted for", "good")

    @display(description="Messages from")
    def from_(self, row: LakeAudit) -> str:
        """Beginning of the examined range."""
        return base.instant(row.since, exact=False) if row.since else "the first"

    @display(description="Until")
    def to(self, row: LakeAudit) -> str:
        """End of the examined range."""
        return base.instant(row.until, exact=False)

    @display(description="Ended")
    def ended(self, row: LakeAudit) -> str:
        """When it ended."""
        return base.instant(row.finished_at, exact=False)

    @display(description="Took")
    def took(self, row: LakeAudit) -> str:
        """Its duration."""
        return f"{clock.elapsed(row.started_at, row.finished_at).total_seconds():,.1f} s"

    @display(description="Messages")
    def messages(self, row: LakeAudit) -> str:
        """Number of examined messages."""
        return intcomma(row.message_count)

    @display(description="Deliveries")
    def deliveries(self, row: LakeAudit) -> str:
        """Number of examined deliveries."""
        return intcomma(row.delivery_count)

    @display(description="Attempts")
    def attempts(self, row: LakeAudit) -> str:
        """Number of examined attempts."""
        return intcomma(row.attempt_count)


def ticks(row: LakeAudit, findings: Iterable[LakeFinding]) -> list[tuple[str, list[Tick]]]:
    """Return the ticks: hours by day, or days by month."""
    begins = [datetime.fromisoformat(span[0]) for span in row.spans]
    by_hour = any(at.hour for at in begins)
    off: Tally[datetime] = Tally()
    for finding in findings:
        at = finding.hour if by_hour else finding.hour.replace(hour=0)
        off[at] += finding.count
    counts = dict(zip(begins, (span[1] for span in row.spans), strict=True))
    by_title: dict[str, list[Tick]] = {}
    # Wrong rows may be in hours without any correct ones.
    for at in sorted({*counts, *off}):
        title = f"{at:%d %B %Y}" if by_hour else f"{at:%B %Y}"
        label = f"{at:%H}" if by_hour else f"{at.day}"
        end = at + timedelta(hours=1 if by_hour else 24)
        text = f"{at:%Y-%m-%d %H:%M} to {end:%H:%M}" if by_hour else f"{at:%Y-%m-%d}"
        by_title.setdefault(title, []).append(Tick(label, text, off[at], counts.get(at, 0)))
    return list(by_title.items())


def cards(findings: Iterable[LakeFinding]) -> list[Card]:
    """Return cards, the most rows first, with links where a row is in the tables."""
    rows = list(findings)
    channels = Channel.objects.in_bulk({row.channel_id for row in rows})
    consumers = Consumer.objects.in_bulk({row.consumer_id for row in rows})
    by_place: dict[Place, Card] = {}
    for row in rows:
        place = row.check_name, row.channel_id, row.consumer_id
        channel, consumer = channels.get(row.channel_id), consumers.get(row.consumer_id)
        if place not in by_place:
            by_place[place] = _card(row, channel.slug if channel else "", str(consumer or ""))
        card = by_place[place]
        card.count += row.count
        card.since = min(card.since or row.hour, row.hour)
        card.until = max(card.until or row.hour, row.hour)
        card.names += row.ids[: NAMES - len(card.names)]
    for (name, _, _), card in by_place.items():
        explained = LAKE_EXPLANATIONS[name]
        word = explained.row if card.count == 1 else explained.rows
        card.meaning = f"{card.count:,} {word}: each {explained.meaning}"
    cards_ = sorted(by_place.values(), key=lambda card: -card.count)
    _link(cards_[:CARDS])
    return cards_


def _shown(row: LakeAudit) -> dict[str, Any]:
    findings = list(LakeFinding.objects.filter(audit=row).order_by("id"))
    all_cards = cards(findings)
    return {
        "tick_rows": ticks(row, findings),
        "cards": all_cards[:CARDS],
        "more_cards": max(0, len(all_cards) - CARDS),
    }


def _card(row: LakeFinding, channel: str, consumer: str) -> Card:
    where = "/".join(
        name or f"({number})"
        for name, number in ((channel, row.channel_id), (consumer, row.consumer_id))
        if number
    )
    name = row.check_name.replace("_", " ")
    title = f"{name} in {where}" if where else name
    is_check = row.check_name not in (DOUBLED, UNASKED)
    text = LAKE_EXPLANATIONS[row.check_name].remedy
    return Card(title, remedy=remedy(row.check_name, channel, consumer) if is_check else text)  # type: ignore[arg-type]  # a name


def _link(cards_: Iterable[Card]) -> None:
    """Link the ids that are in the tables to their pages."""
    by_kind: dict[str, set[int]] = {}
    shown = list(cards_)
    for card in shown:
        for name in card.names:
            prefix, number = _number(name)
            by_kind.setdefault(prefix, set()).add(number)
    alive = {
        (prefix, key)
        for prefix, numbers in by_kind.items()
        for key in PAGES[prefix][0].objects.filter(id__in=numbers).values_list("id", flat=True)
    }
    for card in shown:
        for name in card.names:
            prefix, number = _number(name)
            page = PAGES[prefix][1] if (prefix, number) in alive else ""
            card.links.append((name, reverse(page, args=[name]) if page else ""))


def _number(name: str) -> tuple[str, int]:
    prefix = name.partition("_")[0]
    return prefix, ids.from_public(prefix, name) or 0
