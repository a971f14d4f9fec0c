"""Show the broker's own reconciliations in the console: reports and their findings."""

from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.admin.filters import ChoicesDropdownFilter
from channels_app.core import ids
from channels_app.database import clock
from delivery.core.reconciliation import STATES, Check, remedy
from delivery.models import ReconciliationReport

PAGES = {
    ids.MESSAGE: "admin:channels_app_message",
    ids.DELIVERY: "admin:delivery_delivery",
    ids.ATTEMPT: "admin:delivery_attempt",
}
"""Lists and pages of the rows of a finding, by the prefix of their ids."""
LISTS = {
    Check.UNDISPATCHED: ("admin:channels_app_message", "?channel={channel}&state=Acknowledged"),
    Check.FAN_OUT: ("admin:channels_app_message", "?channel={channel}"),
    Check.BODIES: ("admin:channels_app_message", "?channel={channel}"),
    Check.MISSING: ("admin:delivery_delivery", "?consumer={consumer}"),
    Check.ATTEMPTS: ("admin:delivery_delivery", "?consumer={consumer}"),
    Check.LEASES: ("admin:delivery_delivery", "?consumer={consumer}&state=in_flight"),
    Check.LATE: ("admin:delivery_delivery", "?consumer={consumer}&state=queued"),
}
"""Lists with a finding's rows; orphans are only in the list of their own table."""
CARD = """<section class="hs-card hs-finding"><h2>{} <span class="hs-label hs-bad">{}</span></h2>
<p>{}</p><p>{}</p><p class="hs-note">{}</p></section>"""


@admin.register(ReconciliationReport)
class ReconciliationReportAdmin(base.ReadOnly):
    """Reports of reconciliations, newest first."""

    list_display = ("title", "result", "finished", "messages", "deliveries", "took")
    list_filter = (("span", ChoicesDropdownFilter),)
    ordering = ("-id",)
    sortable_by = ()
    fields = (
        ("title", "result"),
        ("from_", "finished"),
        ("messages", "deliveries"),
        ("by_state", "took"),
        "found",
    )
    readonly_fields = (
        *("title", "result", "from_", "finished", "messages", "deliveries", "by_state", "took"),
        "found",
    )

    @display(description="Audit of")
    def title(self, report: ReconciliationReport) -> str:
        """Number of examined rows."""
        return (
            "everything"
            if report.span == ReconciliationReport.Span.EVERYTHING
            else "the last hours"
        )

    @display(description="Result")
    def result(self, report: ReconciliationReport) -> str:
        """Whether all rows were accounted for."""
        if report.gap:
            return base.label(f"{report.gap:,} off", "bad")
        return base.label("all accounted for", "good")

    @display(description="Messages from")
    def from_(self, report: ReconciliationReport) -> str:
        """Beginning of the examined range."""
        return base.instant(report.since, exact=False) if report.since else "the first"

    @display(description="Ended")
    def finished(self, report: ReconciliationReport) -> str:
        """When it ended."""
        return base.instant(report.finished_at, exact=False)

    @display(description="Took")
    def took(self, report: ReconciliationReport) -> str:
        """Its duration, pauses included."""
        return f"{clock.elapsed(report.started_at, report.finished_at).total_seconds():,.1f} s"

    @display(description="Messages")
    def messages(self, report: ReconciliationReport) -> str:
        """Number of examined messages."""
        return intcomma(report.message_count)

    @display(description="Deliveries")
    def deliveries(self, report: ReconciliationReport) -> str:
        """Number of examined deliveries."""
        return intcomma(report.delivery_count)

    @display(description="By state")
    def by_state(self, report: ReconciliationReport) -> str:
        """Number of deliveries by state."""
        counts = [(state, report.states.get(state, 0)) for state in STATES]
        text = [
            f"{intcomma(number)} {state.replace('_', ' ')}" for state, number in counts if number
        ]
        return ", ".join(text) or base.NONE

    @display(description="Findings")
    def found(self, report: ReconciliationReport) -> SafeString | str:
        """The findings, each with explanation, remedy and links to the rows."""
        if not report.findings:
            return "Everything that was accepted is accounted for."
        return format_html_join("", "{}", ((_card(finding),) for finding in report.findings))


def _card(finding: dict[str, Any]) -> SafeString:
    check = Check(finding["check"])
    channel_id, consumer_id = finding["place"]
    where = "/".join(name for name in (finding["channel"], finding["consumer"]) if name)
    # Lost rows have no page.
    links = [base.mono(name) if check is Check.LOST else _link(name) for name in finding["ids"]]
    if finding["count"] > len(links):
        links.append(format_html("… and {} more", intcomma(finding["count"] - len(links))))
    if check in LISTS:
        page, query = LISTS[check]
        address = reverse(f"{page}_changelist")
        query = query.format(channel=channel_id, consumer=consumer_id)
        links.append(base.linked(f"{address}{query}", "their list"))
    return format_html(
        CARD,
        f"{check.value.replace('_', ' ')}{f' in {where}' if where else ''}",
        intcomma(finding["count"]),
        finding["sentence"],
        _prose(remedy(check, finding["channel"], finding["consumer"])),
        format_html_join(" ", "{}", ((link,) for link in links)),
    )


def _prose(text: str) -> SafeString:
    """Format text between backticks as code."""
    parts = enumerate(text.split("`"))
    return format_html_join(
        "", "{}", ((base.mono(part) if odd % 2 else part,) for odd, part in parts)
    )


def _link(name: str) -> SafeString | str:
    page = PAGES.get(name.partition("_")[0])
    return base.linked(reverse(f"{page}_change", args=[name]), name) if page else name
