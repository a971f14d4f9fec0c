"""Provide the console's start page, its header badge and its search."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.humanize.templatetags.humanize import intcomma
from django.core.cache import caches
from django.db.models.functions import Lower
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.text import Truncator
from unfold.dataclasses import SearchResult

from broker_site.console import charts
from broker_site.observability import backlog
from channels_app.core import ids
from channels_app.core.program import typed
from channels_app.database import clock
from channels_app.database.raw import dialect
from channels_app.models import Channel, Consumer, Message, Producer
from delivery.core.lifecycle import LABELS, DeliveryState
from delivery.core.timing import in_words, quantile_ms
from delivery.health import notifications
from delivery.maintenance import reconciliations, traffic
from delivery.models import Queue
from delivery.models.traffic import MINUTE_S
from delivery.ordering import hot_keys
from delivery.processes import registration

FOUND = 10
"""Results per kind in the search."""
PAGES = (
    (ids.MESSAGE, "Message", "channels_app_message"),
    (ids.DELIVERY, "Delivery", "delivery_delivery"),
    (ids.ATTEMPT, "Attempt", "delivery_attempt"),
    (ids.REPLAY, "Replay", "delivery_replay"),
)
SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
ROW = f"<tr><th scope='row'>{{}}</th>{'<td>{}</td>' * 7}</tr>"
"""Row of the table beside the charts; one template per row would be slow."""
WORST = 5
KEY_SHOWN = 20
"""Characters of an ordering key on a card."""
WORST_FRESH_S = 15
"""Seconds for which they are cached: the counts do not change more often (maintenance/sweeps)."""
FLOW: tuple[tuple[str, str, Callable[[traffic.Span], int]], ...] = (
    ("accepted", "accepted", lambda span: span.accepted),
    ("successful", "delivered", lambda span: span.delivered),
    ("failed", "failed", lambda span: span.failed),
)


@dataclass(frozen=True, slots=True)
class Range:
    """A time range of the charts."""

    name: str
    title: str
    hours: int
    step_s: int
    form: str
    """Format of its times."""


RANGES = {
    chosen.name: chosen
    for chosen in (
        Range("1h", "Last hour", 1, MINUTE_S, "%H:%M"),
        Range("24h", "Last day", 24, 600, "%H:%M"),
        Range("7d", "Last 7 days", 168, 3600, "%d %b %H:%M"),
    )
}
MAX_RANKED = RANGES["24h"]
"""The ranking of failing consumers looks back at most this far."""


def environment(request: HttpRequest) -> list[str]:
    """The badge in the header, which tells installations apart."""
    if settings.DEBUG:
        return ["Debug", "danger"]
    if dialect.is_embedded:
        return ["Embedded", "info"]
    return ["Production", "success"]


def first_page(request: HttpRequest, given: dict[str, Any]) -> dict[str, Any]:
    """Add the overview to the context of the start page."""
    return given | context(request)


def search(request: HttpRequest, term: str) -> list[SearchResult]:
    """Ctrl+K: find objects by public id or by the beginning of their name."""
    results = [
        SearchResult(term, title, reverse(f"admin:{page}_change", args=[number]), "tag")
        for prefix, title, page in PAGES
        if (number := ids.from_public(prefix, term)) is not None
    ]
    for model, name in ((Channel, "slug"), (Consumer, "client_id"), (Producer, "slug")):
        kind = model._meta.model_name
        if not request.user.has_perm(f"channels_app.view_{kind}"):
            continue
        page, title = f"admin:channels_app_{kind}_change", str(model._meta.verbose_name)
        for row in model._default_manager.filter(**{f"{name}__startswith": term})[:FOUND]:
            where = f"{title} of {row.channel}" if isinstance(row, Consumer) else title
            results.append(SearchResult(str(row), where, reverse(page, args=[row.pk]), "tag"))
    if request.user.has_perm("channels_app.view_consumer"):
        # The search term is in lower case, while queue names keep their case.
        named = Queue.objects.annotate(lower=Lower("name")).filter(lower__startswith=term)
        for queue in named[:FOUND]:
            url = reverse("admin:channels_app_consumer_change", args=[queue.consumer_id])
            results.append(SearchResult(queue.name, "Queue", url, "tag"))
    return results


def context(request: HttpRequest) -> dict[str, Any]:
    """The context of the page, and of its live part."""
    chosen = RANGES.get(request.GET.get("range", ""), RANGES["1h"])
    now = clock.now()
    spans = traffic.series(now, hours=chosen.hours, step_s=chosen.step_s)
    # The last interval is incomplete, so its rate would be too low.
    whole = spans[:-1]
    waiting = backlog.read()
    ranked = min(chosen, MAX_RANKED, key=lambda range_: range_.hours)
    may_see_worst = request.user.has_perm("channels_app.view_consumer")
    return {
        "ranges": list(RANGES),
        "range": chosen.name,
        "now": now,
        "is_new": not waiting.by_consumer and not Message.objects.exists(),
        "url": settings.PUBLIC_URL,
        "groups": [
            (chosen.title, _flow(spans, chosen)),
            ("Now", [*_vitals(waiting), *_states(waiting)]),
        ],
        "charts": _charts(whole, chosen),
        "spans": format_html_join("", ROW, (_row(span, chosen) for span in reversed(whole))),
        "may_see_worst": may_see_worst,
        "worst": _worst_of_late(now, ranked) if may_see_worst else [],
        "worst_title": ranked.title.lower(),
    }


def _flow(spans: list[traffic.Span], chosen: Range) -> list[dict[str, Any]]:
    """Cards with the traffic in the range."""
    total = traffic.Span(spans[0].begins_at)
    for span in spans:
        total.add(span)
    since = f"since={chosen.hours}"
    tried = total.delivered + total.failed
    rate = f"{total.delivered / tried:.1%} of attempts" if tried else "no attempts"
    messages = reverse("admin:channels_app_message_changelist")
    deliveries = reverse("admin:delivery_delivery_changelist")
    attempts = reverse("admin:delivery_attempt_changelist")
    quantiles = " / ".join(in_words(quantile_ms(total.latency, share)) for _, share in SHARES)
    return [
        _card("Accepted", intcomma(total.accepted), "messages", f"{messages}?{since}"),
        _card(
            "Successful attempts",
            intcomma(total.delivered),
            rate,
            f"{deliveries}?state=delivered&{since}",
        ),
        _card("Failed attempts", intcomma(total.failed), "will be retried", f"{attempts}?{since}"),
        _card(
            "Latency",
            quantiles,
            "p50 / p95 / p99, from acceptance to delivery",
            f"{deliveries}?state=delivered&{since}",
        ),
    ]


def _card(title: str, value: Any, text: str, link: str, *, alarm: bool = False) -> dict[str, Any]:
    return {"title": title, "value": value, "text": text, "link": link, "alarm": alarm}


def _vitals(waiting: backlog.Backlog) -> list[dict[str, Any]]:
    """Cards about the broker's health."""
    living = registration.living()
    pumps, text = len(living), "processes that send deliveries"
    offset_ms = max((slot.clock_offset_ms for slot in living), key=abs, default=0)
    drifts = notifications.is_drift(offset_ms)
    if drifts:
        text = f"A host's clock is {offset_ms / 1000:+.1f} s from the database's."
    late_s = backlog.oldest_due_s(waiting)
    queued = reverse("admin:delivery_delivery_changelist") + "?state=queued"
    return [
        _card(
            "Running pumps",
            pumps,
            text if pumps else typed("No deliveries are sent. Run manage.py broker."),
            reverse("admin:system"),
            alarm=pumps == 0 or drifts,
        ),
        _card(
            "Oldest due",
            f"{late_s:.1f} s",
            "age of the oldest delivery that can be sent now",
            queued,
            alarm=late_s > backlog.LATE_S,
        ),
        _hot_keys(),
        _books(waiting.gap),
    ]


def _hot_keys() -> dict[str, Any]:
    """A card with the number of hot keys and the hottest one."""
    count, waiting = hot_keys.totals()
    key_rows = reverse("admin:delivery_orderingkey_changelist")
    text = "ordering keys with a large or long-blocked backlog"
    for worst in hot_keys.backlogs(1):
        key = Truncator(worst.key).chars(KEY_SHOWN)
        text = f"{intcomma(waiting)} deliveries wait behind {key} of {worst.name}"
    return _card("Hot keys", intcomma(count), text, key_rows, alarm=count > 0)


def _books(gap: int) -> dict[str, Any]:
    """A card with the gap, by the counters and by the last reconciliations."""
    reports = reconciliations.newest().values()
    mismatched = max((report.gap for report in reports), default=0)
    link = reverse("admin:delivery_reconciliationreport_changelist")
    if gap or not mismatched:
        text = "deliveries created minus those in any state; must be 0"
        if not gap and reports:
            last = max(report.finished_at for report in reports)
            text = f"by the counters and the reconciliation of {last:%d %b %H:%M}"
        return _card("Reconciliation gap", gap, text, link, alarm=gap != 0)
    text = "mismatched rows in the last reconciliation; must be 0"
    return _card("Reconciliation gap", intcomma(mismatched), text, link, alarm=True)


def _states(waiting: backlog.Backlog) -> list[dict[str, Any]]:
    """Cards with the number of deliveries per state."""
    deliveries = reverse("admin:delivery_delivery_changelist")
    counts = waiting.by_state
    return [
        _card(
            label.title,
            intcomma(counts[state]),
            label.about,
            f"{deliveries}?state={state}",
            alarm=state is DeliveryState.DEAD and counts[state] > 0,
        )
        for state, label in LABELS.items()
    ]


def _charts(spans: list[traffic.Span], chosen: Range) -> list[charts.Chart]:
    ends = (spans[0], spans[len(spans) // 2], spans[-1])
    times = [span.begins_at.strftime(chosen.form) for span in ends]
    times[-1] += " UTC"
    flow = [
        charts.ChartSeries(
            name, f"hs-line-{tone}", [_per_minute(read(span), chosen) for span in spans]
        )
        for name, tone, read in FLOW
    ]
    latency = [
        charts.ChartSeries(
            name, f"hs-line-{name}", [quantile_ms(span.latency, share) for span in spans]
        )
        for name, share in SHARES
    ]
    return [
        charts.linear("Per minute", flow, times, charts.amount),
        charts.logarithmic("From acceptance to delivery", latency, times, in_words),
    ]


def _per_minute(count: int, chosen: Range) -> float:
    return count * MINUTE_S / chosen.step_s


def _row(span: traffic.Span, chosen: Range) -> tuple[str, ...]:
    """A row of the table beside the charts."""
    return (
        span.begins_at.strftime(chosen.form),
        *(intcomma(count) for count in (span.accepted, span.delivered, span.failed, span.dead)),
        *(in_words(quantile_ms(span.latency, share)) for _, share in SHARES),
    )


def _worst_of_late(now: datetime, ranked: Range) -> Any:
    return caches["process"].get_or_set(
        f"overview.worst.{ranked.name}", lambda: _worst(now, ranked), WORST_FRESH_S
    )


def _worst(now: datetime, ranked: Range) -> list[dict[str, Any]]:
    """The consumers with the most failures, with links to their pages and dead letters."""
    records = traffic.worst(now, hours=ranked.hours, most=WORST)
    wanted = [record.consumer_id for record in records]
    consumers = Consumer.objects.filter(id__in=wanted).select_related("channel")
    names = {row.id: f"{row.channel.slug} / {row.client_id}" for row in consumers}
    deliveries = reverse("admin:delivery_delivery_changelist")
    return [
        {
            "name": names[record.consumer_id],
            "page": reverse("admin:channels_app_consumer_change", args=[record.consumer_id]),
            "delivered": intcomma(record.delivered),
            "failed": intcomma(record.failed),
            "share": f"{record.failed / max(1, record.delivered + record.failed):.0%}",
            "dead": intcomma(record.dead),
            "dead_link": f"{deliveries}?consumer={record.consumer_id}&state=dead",
        }
        for record in records
        if record.consumer_id in names
    ]
