"""Console: the frame around the Django admin: its name, its colours and the way around."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy
from django.utils.text import format_lazy


def _item(title: str, icon: str, model: str, **more: Any) -> dict[str, Any]:
    """A line of the sidebar, for those who may view ``model`` (``app.model``)."""
    app, name = model.split(".")

    def may_view(request: HttpRequest) -> bool:
        return bool(request.user.has_perm(f"{app}.view_{name}"))

    link = reverse_lazy(f"admin:{app}_{name}_changelist")
    return {"title": title, "icon": icon, "link": link, "permission": may_view, **more}


def _on(path: str, *, dead: bool) -> Callable[[HttpRequest], bool]:
    """Deliveries and dead letters are one list: the state in the address tells them apart."""

    def is_active(request: HttpRequest) -> bool:
        return path in request.path and (request.GET.get("state") == "dead") is dead

    return is_active


def _group(title: str, *items: dict[str, Any], collapsible: bool = False) -> dict[str, Any]:
    return {"title": title, "separator": True, "collapsible": collapsible, "items": list(items)}


_DELIVERIES = "/delivery/delivery/"
_OVERVIEW = {"title": "Overview", "icon": "space_dashboard", "link": reverse_lazy("admin:index")}

_LIST_OF_DELIVERIES = reverse_lazy("admin:delivery_delivery_changelist")


def _state_tab(title: str, state: str) -> dict[str, Any]:
    """A saved view of the deliveries: one state, or all."""
    # With an empty parameter at the end: Unfold lights up every line of the sidebar whose link is
    # also a tab's, and then Deliveries and Dead letters would both look chosen.
    link = format_lazy("{}?state={}&", _LIST_OF_DELIVERIES, state)
    return {
        "title": title,
        "link": link,
        "active": lambda request: request.GET.get("state", "") == state,
    }


def _table_tab(title: str, model: str) -> dict[str, Any]:
    """A table among its kin."""
    item = _item(title, "", model)
    return {key: item[key] for key in ("title", "link", "permission")}


NAVIGATION: list[dict[str, Any]] = [
    {"items": [_OVERVIEW]},
    _group(
        "Traffic",
        _item("Messages", "mail", "channels_app.message"),
        _item("Deliveries", "send", "delivery.delivery", active=_on(_DELIVERIES, dead=False)),
        _item(
            "Dead letters",
            "unsubscribe",
            "delivery.delivery",
            link=format_lazy("{}?state=dead", _LIST_OF_DELIVERIES),
            active=_on(_DELIVERIES, dead=True),
            badge_variant="danger",
            badge_of="dead",
        ),
        _item("Attempts", "repeat_one", "delivery.attempt"),
        _item("Replays", "replay", "delivery.replay"),
    ),
    _group(
        "Configuration",
        _item("Channels", "podcasts", "channels_app.channel"),
        _item("Event types", "category", "channels_app.eventtype"),
        _item("Consumers", "webhook", "channels_app.consumer"),
        _item("Producers", "output", "channels_app.producer"),
        _item("API keys", "key", "channels_app.apikey"),
    ),
    _group(
        "People",
        _item("Teams", "groups", "channels_app.team"),
        _item("Users", "person", "auth.user"),
        _item("Groups", "badge", "auth.group"),
        _item("E-mail addresses", "alternate_email", "account.emailaddress"),
        _item("Second factors", "phonelink_lock", "mfa.authenticator"),
        _item("Audit log", "history", "channels_app.auditentry"),
    ),
    _group(
        "Operation",
        _item("Pumps", "bolt", "delivery.pumpslot"),
        _item("Consumer health", "monitor_heart", "delivery.consumerhealth"),
        _item("Sweeps", "mop", "delivery.sweeprun"),
        _item("Background tasks", "schedule", "django_q.schedule"),
    ),
    _group(
        "Inner tables",
        _item("Message bodies", "draft", "channels_app.messagebody"),
        _item("Idempotency records", "fingerprint", "channels_app.idempotencyrecord"),
        _item("Consumer secrets", "lock", "channels_app.consumersecret"),
        _item("Producer rates", "speed", "channels_app.producerrate"),
        _item("Counters", "pin", "delivery.counter"),
        _item("Directory version", "update", "channels_app.directoryversion"),
        collapsible=True,
    ),
]

TABS: list[dict[str, Any]] = [
    {
        "models": ["delivery.delivery"],
        "items": [
            _state_tab("All", ""),
            _state_tab("Queued", "queued"),
            _state_tab("In flight", "in_flight"),
            _state_tab("Delivered", "delivered"),
            _state_tab("Dead letters", "dead"),
            _state_tab("Cancelled", "cancelled"),
        ],
    },
    {
        "models": ["channels_app.team", "channels_app.membership"],
        "items": [
            _table_tab("Teams", "channels_app.team"),
            _table_tab("Memberships", "channels_app.membership"),
        ],
    },
    {
        "models": ["django_q.schedule", "django_q.ormq", "django_q.success", "django_q.failure"],
        "items": [
            _table_tab("Schedules", "django_q.schedule"),
            _table_tab("Queued", "django_q.ormq"),
            _table_tab("Finished", "django_q.success"),
            _table_tab("Failed", "django_q.failure"),
        ],
    },
]

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Hookstation",
    "SITE_HEADER": "Hookstation",
    "SITE_SUBHEADER": "Webhook broker",
    "SITE_SYMBOL": "webhook",
    "SITE_URL": None,
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda request: static("hookstation/favicon.svg"),
        }
    ],
    "STYLES": [lambda request: static("hookstation/console.css")],
    "SHOW_HISTORY": False,
    "SHOW_BACK_BUTTON": True,
    "ENVIRONMENT": "broker_site.dashboard.environment",
    "DASHBOARD_CALLBACK": "broker_site.dashboard.overview",
    "BORDER_RADIUS": "8px",
    "COLORS": {
        # Teal: apart from the green, orange and red that states are painted in.
        "primary": {
            "50": "oklch(98.4% .014 180.7)",
            "100": "oklch(95.3% .051 180.8)",
            "200": "oklch(91% .096 180.4)",
            "300": "oklch(85.5% .138 181.1)",
            "400": "oklch(77.7% .152 181.9)",
            "500": "oklch(70.4% .14 182.5)",
            "600": "oklch(51.1% .096 186.4)",
            "700": "oklch(43.7% .078 188.2)",
            "800": "oklch(38.6% .063 188.4)",
            "900": "oklch(31% .05 188.4)",
            "950": "oklch(22.7% .046 192.5)",
        },
    },
    "SIDEBAR": {
        "show_search": True,
        "command_search": True,
        "show_all_applications": False,
        "navigation": "broker_site.dashboard.navigation",
    },
    "TABS": TABS,
    "COMMAND": {"search_callback": "broker_site.dashboard.search"},
}
