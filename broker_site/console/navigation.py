"""Define the console's navigation, resolved once and filtered by the user's permissions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.contrib.humanize.templatetags.humanize import intcomma
from django.db.models import Sum
from django.http import HttpRequest
from django.urls import reverse

from delivery.core.lifecycle import LABELS, DeliveryState
from delivery.models import Counter

Asked = Mapping[str, Any]
"""The query parameters of a URL."""


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the sidebar or a tab: a list, for users who may view it."""

    title: str
    icon: str = ""
    model: str = ""
    """``app.model`` of the list and of the permission to view it."""
    query: str = ""
    lit: Callable[[Asked], bool] = lambda asked: True
    """Several entries may lead to one list: whether the query parameters select this one."""
    has_badge: bool = False
    """Shows the number of dead letters, unless it is 0."""
    page: str = ""
    """Name of a page in ``PAGES`` instead of a list; without either it is the start page."""

    def link(self) -> str:
        """URL of the entry."""
        return self._address + self.query

    def may_view(self, request: HttpRequest) -> bool:
        """Whether the user may view it."""
        if self.page:
            from channels_app.admin.pages import PAGES  # noqa: PLC0415 - registers at this site

            return PAGES[self.page].may_view(request)
        if not self.model:
            return True
        app, _, name = self.model.partition(".")
        return bool(request.user.has_perm(f"{app}.view_{name}"))

    def is_lit(self, request: HttpRequest) -> bool:
        """Whether it is the current page."""
        if self.page or not self.model:
            return request.path == self._address
        return request.path.startswith(self._address) and self.lit(request.GET)

    @property
    def _address(self) -> str:
        return _url(f"admin:{self.page}") if self.page else _list_of(self.model)


@dataclass(frozen=True, slots=True)
class Group:
    """Entries under one title."""

    title: str
    places: tuple[Place, ...]


def _in_state(state: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.get("state", "") == state


NAVIGATION = (
    Group("", (Place("Overview", "space_dashboard"),)),
    Group(
        "Traffic",
        (
            Place("Messages", "mail", "channels_app.message"),
            Place("Timeline", "schedule_send", page="timeline"),
            Place("Recurring", "event_repeat", "channels_app.schedule"),
            Place(
                "Deliveries",
                "send",
                "delivery.delivery",
                lit=lambda asked: asked.get("state") != "dead",
            ),
            Place(
                "Dead letters",
                "unsubscribe",
                "delivery.delivery",
                "?state=dead",
                _in_state("dead"),
                has_badge=True,
            ),
            Place(
                "Queues",
                "inbox",
                "channels_app.consumer",
                "?mode__exact=pull",
                lambda asked: asked.get("mode__exact") == "pull",
            ),
            Place("Attempts", "repeat_one", "delivery.attempt"),
            Place("Replays", "replay", "delivery.replay"),
            Place("Ordering keys", "format_list_numbered", "delivery.orderingkey"),
            Place("Sequences", "sort", "channels_app.sequence"),
        ),
    ),
    Group(
        "Configuration",
        (
            Place("Channels", "podcasts", "channels_app.channel"),
            Place("Event types", "category", "channels_app.eventtype"),
            Place(
                "Consumers",
                "webhook",
                "channels_app.consumer",
                lit=lambda asked: asked.get("mode__exact") != "pull",
            ),
            Place("Producers", "output", "channels_app.producer"),
            Place("API keys", "key", "channels_app.apikey"),
        ),
    ),
    Group(
        "People",
        (
            Place("Teams", "groups", "channels_app.team"),
            Place("Users", "person", "auth.user"),
            Place("Groups", "badge", "auth.group"),
            Place("Audit log", "history", "channels_app.auditentry"),
        ),
    ),
    Group(
        "Operation",
        (
            Place("System", "dns", page="system"),
            Place("Notifications", "campaign", "delivery.notification"),
            Place("Traffic", "monitoring", "delivery.traffic"),
            Place("Reconciliation", "fact_check", "delivery.reconciliationreport"),
        ),
    ),
    Group(
        "Pipeline",
        (
            Place("Triage", "emergency", page="triage"),
            Place("Forecast", "trending_up", page="forecast"),
            Place("Archive", "inventory", "delivery.segment"),
            Place("Lake audit", "fact_check", "delivery.lakeaudit"),
            Place("Restores", "settings_backup_restore", "delivery.restore"),
            Place("Usage", "bar_chart", page="usage"),
            Place("Health", "ecg_heart", page="health"),
            Place("Erasures", "ink_eraser", "delivery.erasure"),
            Place("Runs", "account_tree", "delivery.pipelinerun"),
        ),
    ),
)


def _deliveries(title: str, state: str) -> Place:
    """A filtered list of deliveries."""
    return Place(title, "", "delivery.delivery", f"?state={state}", _in_state(state))


TABS = (
    (
        _deliveries("All", ""),
        *(_deliveries(label.title, state.value) for state, label in LABELS.items()),
    ),
)
"""Lists that belong together; each shows tabs for the others."""


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """The groups, with the entries that the user may see."""
    return [
        {
            "title": group.title,
            "items": items,
            "active": any(item["active"] for item in items),
        }
        for group in NAVIGATION
        if (items := [_shown(place, request) for place in group.places if place.may_view(request)])
    ]


def tabs(request: HttpRequest) -> list[dict[str, Any]]:
    """All tabs in the format of Unfold's templates."""
    return [
        {
            "models": sorted({place.model for place in places}),
            "items": [
                _shown(place, request) | {"has_permission": True}
                for place in places
                if place.may_view(request)
            ],
        }
        for places in TABS
    ]


def _list_of(model: str) -> str:
    """URL of a list."""
    return _url(f"admin:{model.replace('.', '_')}_changelist" if model else "admin:index")


@cache
def _url(name: str) -> str:
    """URL of a page by its name, cached: Unfold resolves some over a thousand times per page."""
    return reverse(name)


def _shown(place: Place, request: HttpRequest) -> dict[str, Any]:
    return {
        "title": place.title,
        "icon": place.icon,
        "link": place.link(),
        "active": place.is_lit(request),
        "badge": _dead() if place.has_badge else "",
    }


def _dead() -> str:
    """The number of dead letters; '' for 0."""
    dead = Counter.objects.filter(state=DeliveryState.DEAD).aggregate(total=Sum("count"))["total"]
    return intcomma(dead) if dead else ""
