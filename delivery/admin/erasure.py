"""Show receipts of erasures from the lake in the console."""

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from channels_app.admin import base
from channels_app.admin.base import display
from delivery.models import Erasure

SHOWN = 200
"""Maximum files on the page."""
ROW = (
    '<tr><td class="hs-mono hs-id">{}</td><td>{}</td><td class="hs-mono hs-id">{}</td>'
    '<td class="hs-mono hs-id">{}</td></tr>'
)


@admin.register(Erasure)
class ErasureAdmin(base.ReadOnly):
    """Receipts, newest first; `python -m pipeline erase` writes them."""

    list_display = ("name", "state_now", "requested_by", "reason", "rows", "ended")
    ordering = ("-id",)
    sortable_by = ()
    list_before_template = "delivery/erasure_top.html"
    fields = (
        ("name", "state_now"),
        ("requested_by", "reason"),
        ("begun", "ended"),
        ("messages", "deliveries"),
        ("attempts", "left"),
        "subject",
        "written",
    )
    readonly_fields = (
        *("name", "state_now", "begun", "ended", "subject", "written", "requested_by", "reason"),
        *("messages", "deliveries", "attempts", "left"),
    )

    @display(description="Receipt")
    def name(self, row: Erasure) -> str:
        """Its number."""
        return str(row)

    @display(description="State")
    def state_now(self, row: Erasure) -> SafeString:
        """Whether the erasure is complete."""
        return base.label("done", "good") if row.finished_at else base.label("not done", "wait")

    @display(description="Went")
    def rows(self, row: Erasure) -> str:
        """Number of erased rows."""
        parts = (
            (row.message_count, "messages"),
            (row.delivery_count, "deliveries"),
            (row.attempt_count, "attempts"),
        )
        return ", ".join(f"{intcomma(number)} {name}" for number, name in parts)

    @display(description="Messages")
    def messages(self, row: Erasure) -> str:
        """Number of erased messages."""
        return intcomma(row.message_count)

    @display(description="Deliveries")
    def deliveries(self, row: Erasure) -> str:
        """Number of their erased deliveries."""
        return intcomma(row.delivery_count)

    @display(description="Attempts")
    def attempts(self, row: Erasure) -> str:
        """Number of their erased attempts."""
        return intcomma(row.attempt_count)

    @display(description="Left in the tables")
    def left(self, row: Erasure) -> str:
        """Messages still in the tables. Repeating the command erases them once archived."""
        return intcomma(row.left_count)

    @display(description="Begun")
    def begun(self, row: Erasure) -> str:
        """When it began."""
        return base.instant(row.started_at, exact=False)

    @display(description="Ended")
    def ended(self, row: Erasure) -> str:
        """When it ended."""
        return base.instant(row.finished_at, exact=False)

    @display(description="SHA-256 of what was asked for")
    def subject(self, row: Erasure) -> SafeString | str:
        """Digest of the request: a person who knows the request can prove that it is this one."""
        return base.mono(row.digest)

    @display(description="Files")
    def written(self, row: Erasure) -> SafeString | str:
        """The rewritten files, with removed rows and SHA-256 before and after."""
        if not row.files:
            return "No file was changed."
        rows = format_html_join(
            "",
            ROW,
            (
                (
                    file["path"],
                    intcomma(file["rows"]),
                    file["before"][:12],
                    file["after"][:12] or "gone",
                )
                for file in row.files[:SHOWN]
            ),
        )
        return format_html(
            '<div class="hs-scroll" tabindex="0" role="region" aria-label="Files">'
            '<table class="hs-table hs-files"><thead><tr><th>File</th><th>Rows</th><th>Before</th>'
            "<th>After</th></tr></thead><tbody>{}</tbody></table></div>",
            rows,
        )
