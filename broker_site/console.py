"""Console: the frame around the Django admin: its name and its colours."""

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
    "ENVIRONMENT": "broker_site.dashboard.environment",
    "DASHBOARD_CALLBACK": "broker_site.dashboard.first_page",
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
    },
    "COMMAND": {"search_callback": "broker_site.dashboard.search"},
}
