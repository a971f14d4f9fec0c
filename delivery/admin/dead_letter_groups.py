"""Group dead letters by consumer, outcome and response, reading only short ranges of the newest."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from channels_app.admin import base
from channels_app.models import Consumer
from delivery.core.lifecycle import DeliveryState
from delivery.models import Counter, Delivery

SHOWN = 100
"""Consumers with the most dead letters."""
SCAN_ROWS = 3000
"""Maximum rows that the page reads, over all consumers."""
TERM = (
    "SELECT consumer_id, outcome, status_code, COUNT(*), MAX(id) "  # noqa: S608 - our own table
    "FROM (SELECT consumer_id, id, outcome, status_code "
    f"FROM {Delivery._meta.db_table} WHERE consumer_id = %s AND state = 'dead' "
    "ORDER BY id DESC LIMIT %s) AS slice GROUP BY consumer_id, outcome, status_code"
)


class DeadLetterShare(NamedTuple):
    """Dead letters of one consumer with the same outcome and status code."""

    outcome: str
    status: int | None
    number: int
    newest: int
    """Key of the newest one."""


@dataclass(slots=True)
class Cause:
    """Dead letters of one consumer with the same outcome."""

    outcome: str
    count: int = 0
    newest: int = 0
    """Key of the newest one."""
    answers: Tally[int] = field(default_factory=Tally)
    """Number by status code; empty where there was no response."""

    @property
    def title(self) -> str:
        """Its heading."""
        return self.outcome.replace("_", " ") or "unknown"

    @property
    def sample(self) -> Delivery:
        """The newest delivery, with the fields that a link needs."""
        return Delivery(id=self.newest)

    @property
    def statuses(self) -> list[tuple[int, int]]:
        """Status codes, the most frequent first."""
        return self.answers.most_common()


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """One consumer's dead letters."""

    consumer: Consumer
    count: int
    """Exact, from the counters."""
    looked: int
    """Number of the newest dead letters that were grouped."""
    causes: list[Cause]

    @property
    def is_whole(self) -> bool:
        """Whether all of them were grouped."""
        return self.looked >= self.count


def page(admin: base.AdminPage, request: HttpRequest) -> HttpResponse:
    """Show consumers with dead letters by cause, with links to view and to replay them."""
    base.require(admin.has_view_permission(request))
    groups = piles()
    context = admin.admin_site.each_context(request) | {
        "title": "Dead letters by cause",
        "opts": admin.opts,
        "piles": groups,
        "shown": SHOWN,
        "may_operate": admin.has_operate_permission(request),
    }
    return TemplateResponse(request, "delivery/causes.html", context)


def piles() -> list[DeadLetterGroup]:
    """Return the groups, the largest first."""
    dead = Counter.objects.filter(state=DeliveryState.DEAD).values_list("consumer_id")
    counts = dict(dead.annotate(total=Sum("count")).order_by("-total")[:SHOWN])
    counts = {key: int(total) for key, total in counts.items() if total > 0}
    consumers = Consumer.objects.select_related("channel").in_bulk(list(counts))
    wanted = [key for key in counts if key in consumers]
    rows: dict[int, list[DeadLetterShare]] = {key: [] for key in wanted}
    for consumer_id, *share in _newest(shares({key: counts[key] for key in wanted})):
        rows[consumer_id].append(DeadLetterShare(*share))
    return [
        DeadLetterGroup(
            consumers[key], counts[key], sum(share.number for share in group), _causes(group)
        )
        for key, group in rows.items()
    ]


def shares(counts: dict[int, int]) -> dict[int, int]:
    """Return how many rows of each consumer to read.

    Large groups use what small ones leave of `SCAN_ROWS`.
    """
    room, limits = SCAN_ROWS, {}
    for place, (key, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        limits[key] = min(count, max(1, room // (len(counts) - place)))
        room -= limits[key]
    return limits


def _newest(wanted: dict[int, int]) -> Iterator[Any]:
    """Yield groups of each consumer's newest dead letters; the database counts them."""
    if not wanted:
        return
    union = " UNION ALL ".join([TERM] * len(wanted))
    with connection.cursor() as cursor:
        cursor.execute(union, [part for share in wanted.items() for part in share])
        yield from cursor.fetchall()


def _causes(shares: Iterable[DeadLetterShare]) -> list[Cause]:
    causes: dict[str, Cause] = {}
    for share in shares:
        cause = causes.setdefault(share.outcome, Cause(share.outcome))
        cause.count += share.number
        cause.newest = max(cause.newest, share.newest)
        if share.status is not None:
            cause.answers[share.status] += share.number
    return sorted(causes.values(), key=lambda cause: -cause.count)
