"""Show why deliveries died, what changed at the onset, and a replay for each group."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.db.models import Sum
from django.http import HttpRequest
from django.urls import reverse

from channels_app.admin import pages
from channels_app.models import Channel, Consumer
from delivery.models import DeadCluster, Delivery, PipelineRun

SHOWN = 50
"""Groups on a page."""
TONE = {
    DeadCluster.Kind.REPLAY: "good",
    DeadCluster.Kind.FIX: "wait",
    DeadCluster.Kind.CONFIGURE: "wait",
    DeadCluster.Kind.BROKER: "busy",
    DeadCluster.Kind.NEVER: "bad",
}


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A consumer's share of a group."""

    name: str
    dead: int
    sendable: int
    """Dead letters that a replay can send."""
    more: int
    """Deliveries that the replay's filter takes in addition: same outcome and status, another
    response."""
    replay_url: str
    """Empty if there is nothing to replay, or no consumer."""
    list_url: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group on the page."""

    cluster: DeadCluster
    length: float
    """Length of its bar; the largest group has 100."""
    tone: str
    sample: Delivery | None
    """None when it is only in the archive."""
    is_sensitive: bool
    """Whether its responses may come from a sensitive channel; the list hides these."""
    parts: list[GroupMember]

    @property
    def title(self) -> str:
        """Its outcome."""
        return self.cluster.outcome.replace("_", " ") or "unknown"

    @property
    def others(self) -> int:
        """Number of consumers that are not shown."""
        return self.cluster.consumer_count - len(self.parts)


@pages.page("triage", permission="delivery.view_deadcluster", template="delivery/triage.html")
def context(request: HttpRequest) -> dict[str, Any]:
    """Show the groups with their onset, and the possible actions."""
    groups = DeadCluster.objects.exclude(signature="")
    page = Paginator(groups.order_by("place"), SHOWN).get_page(request.GET.get("page"))
    runs = PipelineRun.objects.filter(job="triage", state=PipelineRun.State.FINISHED)
    run = runs.order_by("-id").first()
    return {
        "title": "Triage",
        "lines": lines(page),
        "page": page,
        "dead": DeadCluster.objects.aggregate(total=Sum("dead_count"))["total"] or 0,
        "kinds": page.paginator.count,
        "rest": DeadCluster.objects.filter(signature="").first(),
        "run": run,
        "since": _instant(run.result.get("since")) if run else None,
        "until": _instant(run.result.get("until")) if run else None,
        "may_see": request.user.has_perm("channels_app.view_message"),
        "may_operate": bool(request.user.has_perm("delivery.change_delivery")),
    }


def lines(clusters: Iterable[DeadCluster]) -> list[GroupRow]:
    """Return groups with links to rows that still exist."""
    groups = list(clusters)
    most = max((cluster.dead_count for cluster in groups), default=0)
    samples = Delivery.objects.in_bulk(
        [cluster.sample_id for cluster in groups if cluster.sample_id]
    )
    keys = {part["consumer"] for cluster in groups for part in cluster.consumers}
    consumers = Consumer.objects.in_bulk(keys)
    sensitive = _sensitive(groups)
    return [
        GroupRow(
            cluster,
            100 * cluster.dead_count / most,
            TONE[DeadCluster.Kind(cluster.kind)],
            samples.get(cluster.sample_id or 0),
            cluster.pk in sensitive,
            list(_parts(cluster, consumers)),
        )
        for cluster in groups
    ]


def _sensitive(clusters: Iterable[DeadCluster]) -> set[int]:
    """Return keys of groups that sensitive channels have, or may have.

    Not all consumers of a group are stored.
    """
    channels = set(Channel.objects.filter(sensitive=True).values_list("id", flat=True))
    return {
        cluster.pk
        for cluster in clusters
        if channels
        and (
            cluster.consumer_count > len(cluster.consumers)
            or not channels.isdisjoint(part["channel"] for part in cluster.consumers)
        )
    }


def _parts(cluster: DeadCluster, consumers: dict[int, Consumer]) -> Iterator[GroupMember]:
    chosen = {
        "state": "dead",
        "outcome": cluster.outcome,
        **({"status_code": cluster.status_code} if cluster.status_code else {}),
    }
    for part in cluster.consumers:
        consumer = consumers.get(part["consumer"])
        here = {"channel": part["channel"], "consumer": part["consumer"], **chosen}
        may = consumer is not None and consumer.state != Consumer.State.RETIRED
        replay = ""
        if may and part["sendable"]:
            when = {"from": part["begins"], "to": part["ends"]}
            replay = f"{reverse('admin:delivery_delivery_matching')}?{urlencode(here | when)}"
        yield GroupMember(
            part["name"],
            part["dead"],
            part["sendable"],
            max(0, part["matches"] - part["sendable"]),
            replay,
            f"{reverse('admin:delivery_delivery_changelist')}?{urlencode(here)}",
        )


def _instant(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
