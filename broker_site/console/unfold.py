"""Configure Unfold for the console: its name, its style and its callbacks."""

from typing import Any

from django.templatetags.static import static

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
    "SCRIPTS": [lambda request: static("hookstation/console.js")],
    "SHOW_HISTORY": False,
    "SHOW_BACK_BUTTON": True,
    "ENVIRONMENT": "broker_site.console.overview.environment",
    "DASHBOARD_CALLBACK": "broker_site.console.overview.first_page",
    "BORDER_RADIUS": "8px",
    "SIDEBAR": {
        "show_search": True,
        "command_search": True,
        "show_all_applications": False,
    },
    "COMMAND": {"search_callback": "broker_site.console.overview.search"},
}
