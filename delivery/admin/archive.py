"""Show the archive in the console: the progress of each day, and the ledger's segments."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.db.models import Count, Sum
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from channels_app.admin import base
from channels_app.admin.base import WithPageContext, display
from channels_app.core import ids
from delivery.conf import conf
from delivery.models import Segment

DAYS = 42
"""Days on the page, up to the newest archived one."""
TONES = {
    Segment.State.PLANNED: "calm",
    Segment.State.EXPORTED: "busy",
    Segment.State.VERIFIED: "wait",
    Segment.State.PRUNING: "busy",
    Segment.State.AMENDING: "wait",
    Segment.State.PRUNED: "good",
}


@dataclass(slots=True)
class Cell:
    """Segments of one kind on one day."""

    states: list[tuple[str, str, int]] = field(default_factory=list)
    """Name, tone and number of segments."""
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ArchiveDay:
    """A row of the page."""

    day: date
    deliveries: Cell = field(default_factory=Cell)
    messages: Cell = field(default_factory=Cell)


@admin.register(Segment)
class SegmentAdmin(WithPageContext, base.BigList):
    """The ledger, newest first, below a summary by day."""

    list_display = ("number", "kind", "day", "state_now", "rows", "size", "run", "exported")
    list_display_links = ("number",)
    list_before_template = "delivery/archive_top.html"
    fields = (
        ("number", "kind"),
        ("day", "state_now"),
        ("rows", "deleted"),
        ("first", "last"),
        ("finished_before", "dead_before"),
        ("planned", "exported"),
        ("verified", "pruned"),
        "held",
    )
    readonly_fields = (
        *("number", "state_now", "rows", "deleted", "first", "last", "finished_before"),
        *("dead_before", "planned", "exported", "verified", "pruned", "held"),
    )

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """The lake's rows by day."""
        return {"days": list(days()), "shown": DAYS, "lake": conf().lake}

    @display(description="Segment")
    def number(self, row: Segment) -> str:
        """Its number, which names its files."""
        return str(row.pk)

    @display(description="State")
    def state_now(self, row: Segment) -> SafeString:
        """Its state."""
        return base.label(row.state, TONES[Segment.State(row.state)])

    @display(description="Rows")
    def rows(self, row: Segment) -> str:
        """Number of deliveries or messages, without a delivery's attempts."""
        return intcomma(row.row_count)

    @display(description="Deleted here")
    def deleted(self, row: Segment) -> str:
        """Number of its deleted rows."""
        return intcomma(row.deleted_count)

    @display(description="Size")
    def size(self, row: Segment) -> str:
        """Bytes of its files."""
        return filesizeformat(row.byte_count)

    @display(description="Written by")
    def run(self, row: Segment) -> SafeString | str:
        """The run that wrote its files."""
        runs = sorted({_run_of(file["tmp"]) for file in row.files if "tmp" in file} - {0})
        links = [
            (base.linked(reverse("admin:delivery_pipelinerun_change", args=[key]), f"run {key}"),)
            for key in runs
        ]
        return format_html_join(" ", "{}", links) if links else base.NONE

    @display(description="Made from")
    def first(self, row: Segment) -> SafeString | str:
        """The earliest time at which its first key may have been generated."""
        return base.instant(_made_at(row.low))

    @display(description="Made before")
    def last(self, row: Segment) -> SafeString | str:
        """The earliest time of the next segment's keys."""
        return base.instant(_made_at(row.high))

    @display(description="Finished before")
    def finished_before(self, row: Segment) -> SafeString | str:
        """Cutoff of channels without a retention of their own."""
        return _cutoff(row, "finished")

    @display(description="Dead before")
    def dead_before(self, row: Segment) -> SafeString | str:
        """Cutoff of dead letters."""
        return _cutoff(row, "dead")

    @display(description="Planned")
    def planned(self, row: Segment) -> SafeString | str:
        """When it was planned."""
        return base.instant(row.planned_at)

    @display(description="Exported")
    def exported(self, row: Segment) -> SafeString | str:
        """When its files were written."""
        return base.instant(row.exported_at, exact=False)

    @display(description="Verified")
    def verified(self, row: Segment) -> SafeString | str:
        """When its files were verified."""
        return base.instant(row.verified_at)

    @display(description="Only in the lake")
    def pruned(self, row: Segment) -> SafeString | str:
        """When its rows were deleted from the tables."""
        return base.instant(row.pruned_at)

    @display(description="Files")
    def held(self, row: Segment) -> SafeString | str:
        """Its files, each with rows and size."""
        if not row.files:
            return base.NONE
        return format_html_join(
            "",
            "<p>{}<br>{} rows, {}, SHA-256 {}</p>",
            (
                (
                    base.mono(file["path"]),
                    intcomma(file["rows"]),
                    filesizeformat(file["bytes"]),
                    base.mono(file["sha256"]),
                )
                for file in row.files
            ),
        )


def days() -> Iterator[ArchiveDay]:
    """Yield days with segments, newest first."""
    newest = [
        low
        for kind in Segment.Kind
        for low in Segment.objects.filter(kind=kind)
        .order_by("-low")
        .values_list("low", flat=True)[:1]
    ]
    if not newest:
        return
    first = _made_at(max(newest)).date() - timedelta(days=DAYS - 1)
    start = ids.id_at(datetime.combine(first, time.min, UTC))
    by_date: dict[date, ArchiveDay] = {}
    for kind in Segment.Kind:
        segments = Segment.objects.filter(kind=kind, low__gte=start).order_by()
        for row in segments.values("day", "state").annotate(
            segments=Count("id"), rows=Sum("row_count"), size=Sum("byte_count")
        ):
            day = by_date.setdefault(row["day"], ArchiveDay(row["day"]))
            cell: Cell = getattr(day, kind.value)
            tone = TONES[Segment.State(row["state"])]
            cell.states.append((row["state"], tone, row["segments"]))
            cell.rows += int(row["rows"])
            cell.bytes += int(row["size"])
    order = [state.value for state in Segment.State]
    for day in sorted(by_date.values(), key=lambda each: each.day, reverse=True):
        for cell in (day.deliveries, day.messages):
            cell.states.sort(key=lambda each: order.index(each[0]))
        yield day


def _cutoff(row: Segment, name: str) -> SafeString | str:
    text = row.cutoffs.get(name)
    if not text:
        return base.NONE
    own = len(row.cutoffs.get("channels", {}))
    at = base.instant(datetime.fromisoformat(text), exact=False)
    if not own:
        return at
    return format_html("{} <span class='hs-note'>{} channels have their own</span>", at, own)


def _made_at(key: int) -> datetime:
    return datetime.fromtimestamp(ids.created_ms(key) / 1000, UTC)


def _run_of(tmp: str) -> int:
    """Return the run that wrote a file, from the file's temporary name."""
    number = tmp.removesuffix(".tmp").rpartition(".")[2]
    return int(number) if number.isdecimal() else 0
