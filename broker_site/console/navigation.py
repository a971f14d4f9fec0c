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
class MenuEntry:
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
    places: tuple[MenuEntry, ...]


def _in_state(state: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.get("state", "") == state


NAVIGATION = (
    Group("", (MenuEntry("Overview", "space_dashboard"),)),
    Group(
        "Traffic",
        (
            MenuEntry("Messages", "mail", "channels_app.message"),
            MenuEntry("Timeline", "schedule_send", page="timeline"),
            MenuEntry("Recurring", "event_repeat", "channels_app.schedule"),
            MenuEntry(
                "Deliveries",
                "send",
                "delivery.delivery",
                lit=lambda asked: asked.get("state") != "dead",
            ),
            MenuEntry(
                "Dead letters",
                "unsubscribe",
                "delivery.delivery",
                "?state=dead",
                _in_state("dead"),
                has_badge=True,
            ),
            MenuEntry(
                "Queues",
                "inbox",
                "channels_app.consumer",
                "?mode__exact=pull",
                lambda asked: asked.get("mode__exact") == "pull",
            ),
            MenuEntry("Attempts", "repeat_one", "delivery.attempt"),
            MenuEntry("Replays", "replay", "delivery.replay"),
            MenuEntry("Ordering keys", "format_list_numbered", "delivery.orderingkey"),
            MenuEntry("Sequences", "sort", "channels_app.sequence"),
        ),
    ),
    Group(
        "Configuration",
        (
            MenuEntry("Channels", "podcasts", "channels_app.channel"),
            MenuEntry("Event types", "category", "channels_app.eventtype"),
            MenuEntry(
                "Consumers",
                "webhook",
                "channels_app.consumer",
                lit=lambda asked: asked.get("mode__exact") != "pull",
            ),
            MenuEntry("Producers", "output", "channels_app.producer"),
            MenuEntry("API keys", "key", "channels_app.apikey"),
        ),
    ),
    Group(
        "People",
        (
            MenuEntry("Teams", "groups", "channels_app.team"),
            MenuEntry("Users", "person", "auth.user"),
            MenuEntry("Groups", "badge", "auth.group"),
            MenuEntry("Audit log", "history", "channels_app.auditentry"),
        ),
    ),
    Group(
        "Operation",
        (
            MenuEntry("System", "dns", page="system"),
            MenuEntry("Notifications", "campaign", "delivery.notification"),
            MenuEntry("Traffic", "monitoring", "delivery.traffic"),
            MenuEntry("Reconciliation", "fact_check", "delivery.reconciliationreport"),
        ),
    ),
    Group(
        "Pipeline",
        (
            MenuEntry("Triage", "emergency", page="triage"),
            MenuEntry("Forecast", "trending_up", page="forecast"),
            MenuEntry("Archive", "inventory", "delivery.segment"),
            MenuEntry("Lake audit", "fact_check", "delivery.lakeaudit"),
            MenuEntry("Restores", "settings_backup_restore", "delivery.restore"),
            MenuEntry("Usage", "bar_chart", page="usage"),
            MenuEntry("Health", "ecg_heart", page="health"),
            MenuEntry("Erasures", "ink_eraser", "delivery.erasure"),
            MenuEntry("Runs", "account_tree", "delivery.pipelinerun"),
        ),
    ),
)


def _deliveries(title: str, state: str) -> MenuEntry:
    """A filtered list of deliveries."""
    return MenuEntry(title, "", "delivery.delivery", f"?state={state}", _in_state(state))


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


def _shown(place: MenuEntry, request: HttpRequest) -> dict[str, Any]:
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
