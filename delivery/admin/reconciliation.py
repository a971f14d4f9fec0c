"""Admin pages of reconciliations that the broker runs by itself: reports and their findings."""

from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from channels_app.admin import base
from channels_app.admin.base import display
from channels_app.admin.choices import ChoicesDropdownFilter
from channels_app.rules import ids
from delivery.models import AccountingReport, Pruned
from delivery.models.accounting import EVERY_CHANNEL
from delivery.rules.reconciliation import STATES, Check, remedy

PAGES = {
    ids.MESSAGE: "admin:channels_app_message",
    ids.DELIVERY: "admin:delivery_delivery",
    ids.ATTEMPT: "admin:delivery_attempt",
}
"""Lists and pages of what a finding names, by the beginning of its ids."""
LISTS = {
    Check.UNDISPATCHED: ("admin:channels_app_message", "?channel={channel}&state=Acknowledged"),
    Check.FAN_OUT: ("admin:channels_app_message", "?channel={channel}"),
    Check.BODIES: ("admin:channels_app_message", "?channel={channel}"),
    Check.MISSING: ("admin:delivery_delivery", "?consumer={consumer}"),
    Check.ATTEMPTS: ("admin:delivery_delivery", "?consumer={consumer}"),
    Check.COUNTERS: ("admin:delivery_counter", "?q={consumer}"),
    Check.LEASES: ("admin:delivery_delivery", "?consumer={consumer}&state=in_flight"),
    Check.LATE: ("admin:delivery_delivery", "?consumer={consumer}&state=queued"),
}
"""Where a finding's rows are; an orphan is in no list but its table's."""
CARD = """<section class="hs-card hs-finding"><h2>{} <span class="hs-label hs-bad">{}</span></h2>
<p>{}</p><p>{}</p><p class="hs-note">{}</p></section>"""


@admin.register(AccountingReport)
class AccountingReportAdmin(base.ReadOnly):
    """What each audit came to, newest first."""

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
    def title(self, report: AccountingReport) -> str:
        """How much it looked at."""
        return "everything" if report.span == AccountingReport.Span.EVERYTHING else "the last hours"

    @display(description="Result")
    def result(self, report: AccountingReport) -> str:
        """Whether it all added up."""
        if report.gap:
            return base.label(f"{report.gap:,} off", "bad")
        return base.label("all accounted for", "good")

    @display(description="Messages from")
    def from_(self, report: AccountingReport) -> str:
        """Where it began."""
        return base.instant(report.since, exact=False) if report.since else "the first"

    @display(description="Ended")
    def finished(self, report: AccountingReport) -> str:
        """When it was done."""
        return base.instant(report.finished_at, exact=False)

    @display(description="Took")
    def took(self, report: AccountingReport) -> str:
        """From beginning to end, with the pauses that it makes."""
        return f"{(report.finished_at - report.started_at).total_seconds():,.1f} s"

    @display(description="Messages")
    def messages(self, report: AccountingReport) -> str:
        """How many it looked at."""
        return intcomma(report.message_count)

    @display(description="Deliveries")
    def deliveries(self, report: AccountingReport) -> str:
        """How many it looked at."""
        return intcomma(report.delivery_count)

    @display(description="By state")
    def by_state(self, report: AccountingReport) -> str:
        """Where the deliveries were."""
        found = [(state, report.states.get(state, 0)) for state in STATES]
        text = [
            f"{intcomma(number)} {state.replace('_', ' ')}" for state, number in found if number
        ]
        return ", ".join(text) or base.NONE

    @display(description="Findings")
    def found(self, report: AccountingReport) -> SafeString | str:
        """Each with what it means, the way out, and links to the rows."""
        if not report.findings:
            return "Everything that was accepted is accounted for."
        return format_html_join("", "{}", ((_card(it),) for it in report.findings))


def _card(finding: dict[str, Any]) -> SafeString:
    check = Check(finding["check"])
    channel_id, consumer_id = finding["place"]
    where = "/".join(name for name in (finding["channel"], finding["consumer"]) if name)
    # What is lost has no page to lead to.
    links = [base.mono(it) if check is Check.LOST else _link(it) for it in finding["ids"]]
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
    """What stands between backticks is to be typed."""
    parts = enumerate(text.split("`"))
    return format_html_join("", "{}", ((base.mono(it) if odd % 2 else it,) for odd, it in parts))


def _link(name: str) -> SafeString | str:
    page = PAGES.get(name.partition("_")[0])
    return base.linked(reverse(f"{page}_change", args=[name]), name) if page else name


@admin.register(Pruned)
class PrunedAdmin(base.ReadOnly):
    """Up to where retention has deleted deliveries of each channel, and messages of any."""

    list_display = ("channel", "message_id")
    ordering = ("channel_id",)

    @display(description="Channel")
    def channel(self, row: Pruned) -> str:
        """Its number."""
        return "every channel" if row.channel_id == EVERY_CHANNEL else str(row.channel_id)
