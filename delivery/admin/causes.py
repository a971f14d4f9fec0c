"""Dead letters by cause: consumer, outcome and answer, counted among the newest by short ranges."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from django.db import connection
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from channels_app.admin import base
from channels_app.models import Consumer
from delivery.models import Counter, Delivery
from delivery.rules.lifecycle import DeliveryState

SHOWN = 100
"""Consumers with the most dead letters."""
LOOK = 10_000
"""Rows that the page reads, over all consumers."""
TERM = (
    "SELECT * FROM (SELECT consumer_id, id, outcome, status_code "  # noqa: S608 - our own table
    f"FROM {Delivery._meta.db_table} WHERE consumer_id = %s AND state = 'dead' "
    "ORDER BY id DESC LIMIT %s) AS t{}"
)


@dataclass(slots=True)
class Cause:
    """Dead letters of one consumer that ended alike."""

    outcome: str
    count: int = 0
    newest: int = 0
    """Key of the last one."""
    answers: Tally[int] = field(default_factory=Tally)
    """Status codes; empty where there was no answer."""

    @property
    def title(self) -> str:
        """For people."""
        return self.outcome.replace("_", " ") or "unknown"

    @property
    def sample(self) -> Delivery:
        """The newest of them, as far as a link needs it."""
        return Delivery(id=self.newest)

    @property
    def statuses(self) -> list[tuple[int, int]]:
        """Status codes, the most frequent first."""
        return self.answers.most_common()


@dataclass(frozen=True, slots=True)
class Pile:
    """One consumer's dead letters."""

    consumer: Consumer
    count: int
    """Exact, from the counters."""
    looked: int
    """How many of them, newest first, the causes were counted among."""
    causes: list[Cause]

    @property
    def is_whole(self) -> bool:
        """Whether all of them were looked at."""
        return self.looked >= self.count


def page(admin: base.Page, request: HttpRequest) -> HttpResponse:
    """Who has dead letters and why, with a way to look at them and to send them again."""
    base.require(admin.has_view_permission(request))
    found = piles()
    context = admin.admin_site.each_context(request) | {
        "title": "Dead letters by cause",
        "opts": admin.opts,
        "piles": found,
        "shown": SHOWN,
        "may_operate": admin.has_operate_permission(request),
    }
    return TemplateResponse(request, "delivery/causes.html", context)


def piles() -> list[Pile]:
    """The largest first."""
    dead = Counter.objects.filter(state=DeliveryState.DEAD).values_list("consumer_id")
    counts = dict(dead.annotate(total=Sum("count")).order_by("-total")[:SHOWN])
    counts = {key: int(total) for key, total in counts.items() if total > 0}
    known = Consumer.objects.select_related("channel").in_bulk(list(counts))
    wanted = [key for key in counts if key in known]
    rows: dict[int, list[tuple[int, str, int | None]]] = {key: [] for key in wanted}
    for consumer_id, key, outcome, status in _newest(shares({key: counts[key] for key in wanted})):
        rows[consumer_id].append((key, outcome, status))
    return [Pile(known[key], counts[key], len(rows[key]), _causes(rows[key])) for key in wanted]


def shares(counts: dict[int, int]) -> dict[int, int]:
    """How many rows of each are read: what small piles leave of `LOOK` the larger ones have."""
    left, found = LOOK, {}
    for place, (key, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        found[key] = min(count, max(1, left // (len(counts) - place)))
        left -= found[key]
    return found


def _newest(wanted: dict[int, int]) -> Iterator[tuple[int, int, str, int | None]]:
    """The newest of each consumer, so many."""
    if not wanted:
        return
    union = " UNION ALL ".join(TERM.format(place) for place in range(len(wanted)))
    with connection.cursor() as cursor:
        cursor.execute(union, [part for share in wanted.items() for part in share])
        yield from cursor.fetchall()


def _causes(rows: Iterable[tuple[int, str, int | None]]) -> list[Cause]:
    found: dict[str, Cause] = {}
    for key, outcome, status in rows:
        cause = found.setdefault(outcome, Cause(outcome))
        cause.count += 1
        cause.newest = max(cause.newest, key)
        if status is not None:
            cause.answers[status] += 1
    return sorted(found.values(), key=lambda cause: -cause.count)
