"""Define the template tags of the portal: times, states, sparklines; ``{% load portal %}``."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django import template
from django.conf import settings
from django.db.models import QuerySet
from django.forms import BoundField, CheckboxInput
from django.utils.html import format_html
from django.utils.safestring import SafeString

from channels_app.core import times
from channels_app.models import Membership

register = template.Library()

TONES = {
    "good": {"active", "valid", "delivered", "closed", "owner"},
    "bad": {"dead", "disabled", "revoked", "open", "failed"},
    "busy": {"queued", "in_flight", "running", "half_open", "editor"},
    "wait": {"paused", "retrying", "awaiting_ack", "pending", "expiring"},
}
"""Colours of states; other states are calm."""
SPARK = (120, 28)
"""Width and height of a sparkline, in units of its view box."""


@register.filter
def instant(value: datetime | None, style: str = "") -> SafeString:
    """An instant in UTC, which the page's script converts to the reader's time zone.

    ``style`` is ``ago`` for the distance from now; empty for date and time.
    """
    if value is None:
        return SafeString('<span class="faint">never</span>')
    shown = value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    html = '<time datetime="{}" data-style="{}" title="{}">{}</time>'
    return format_html(html, times.text(value), style, times.text(value), shown)


@register.filter
def badge(word: str, tone: str = "") -> SafeString:
    """A state as a coloured word; without ``tone`` the colour depends on the word."""
    usual_tone = next((name for name, words in TONES.items() if word in words), "calm")
    html = '<span class="badge badge-{}">{}</span>'
    return format_html(html, tone or usual_tone, word.replace("_", " "))


@register.simple_tag
def teams_of(user: Any) -> QuerySet[Membership]:
    """The teams of a user."""
    memberships = Membership.objects.filter(user_id=user.pk)
    return memberships.select_related("team").order_by("team__name", "team__slug")


@register.simple_tag
def signup_open() -> bool:
    """Whether anybody may create an account."""
    return bool(settings.SIGNUP == "open")


@register.simple_tag
def can_mail() -> bool:
    """Whether mail is sent to people, and not only logged."""
    return bool(settings.CAN_MAIL)


@register.filter
def kind(field: BoundField) -> str:
    """The layout of a form field: ``check``, ``choices`` or ``line``."""
    widget = field.field.widget
    if widget.use_fieldset:
        return "choices"
    return "check" if isinstance(widget, CheckboxInput) else "line"


@register.simple_tag
def sparkline(values: Sequence[float], label: str = "") -> SafeString:
    """A line through the values, oldest first, as an SVG image without scripts."""
    width, height = SPARK
    top = max(values, default=0) or 1
    step = width / max(len(values) - 1, 1)
    points = " ".join(
        f"{position * step:.1f},{height - 2 - value / top * (height - 4):.1f}"
        for position, value in enumerate(values)
    )
    return format_html(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}" '
        'preserveAspectRatio="none"><polyline points="{}"/></svg>',
        *(width, height, label, points),
    )
