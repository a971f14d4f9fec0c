"""Decide which changes of health and quotas people are notified of, in which words."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from delivery.core.health_status import NotificationKind

CONSUMER_PREFIX, LIMIT_PREFIX = "hookstation.consumer.", "hookstation.limit."
DRIFT = "hookstation.clock.drifting"
"""A host's clock and the database's differ too much."""
_PHRASES = {
    NotificationKind.FAILING: "is failing",
    NotificationKind.DISABLED: "was disabled",
    NotificationKind.DEAD_LETTER: "has a dead letter",
    NotificationKind.HOT_KEY: "has a hot key",
    NotificationKind.RECOVERED: "has recovered",
    NotificationKind.LIMIT_NEAR: "is near its limit",
    NotificationKind.LIMIT_FULL: "is at its limit",
    NotificationKind.LIMIT_OK: "has room again",
}
_NEXT = {
    NotificationKind.FAILING: (
        "We keep trying, at longer and longer intervals. Messages wait meanwhile, and become dead "
        "letters when their attempts are used up. Fix the endpoint, or pause the webhook until "
        "then."
    ),
    NotificationKind.DISABLED: (
        "The broker sends it nothing more, and new messages wait. Resume the webhook when the "
        "endpoint is ready again."
    ),
    NotificationKind.DEAD_LETTER: (
        "The last attempt of a message failed. The message is kept as a dead letter: replay it "
        "when the endpoint can accept it. We report further dead letters at most once a day."
    ),
    NotificationKind.HOT_KEY: (
        "Messages of one key are sent one at a time, and more of this key arrive than can be sent. "
        "Other keys are not affected. Respond faster, spread these messages over several keys, or "
        "skip the head if it blocks the key. We report hot keys at most once an hour."
    ),
    NotificationKind.RECOVERED: (
        "Messages are delivered again, including those that waited. Messages that died meanwhile "
        "stay in the dead letters until you replay them."
    ),
    NotificationKind.LIMIT_NEAR: (
        "At the limit further messages are refused. Find the consumer that they wait for, or ask "
        "an operator for a higher limit."
    ),
    NotificationKind.LIMIT_FULL: (
        "Further messages are refused until some are delivered; no accepted message is lost. "
        "Find the consumer that they wait for, or ask an operator for a higher limit."
    ),
    NotificationKind.LIMIT_OK: "Messages are accepted again.",
}

QUOTA_NEAR = 0.8
"""Share of a limit at which people are notified."""
QUOTA_CALM = 0.7
"""Share below which the warning ends; lower than `NEAR` to prevent repeated notifications."""
QUOTA_OK, QUOTA_NEARLY, QUOTA_FULL = "ok", "near", "full"


@dataclass(frozen=True, slots=True)
class NotificationContent:
    """The content of a notification."""

    kind: NotificationKind
    at: datetime
    channel: str
    client_id: str
    team: str
    """The team's slug; '' for a consumer without a team."""
    reason: str
    """One sentence."""
    page: str
    """URL of the page for the owners; '' if there is none."""
    limit: str = ""
    """The limit, such as ``channel orders``; '' for a notification about a consumer."""


def event_type(kind: NotificationKind) -> str:
    """Return the event type, such as ``hookstation.consumer.failing``."""
    is_limit = kind.value.startswith("limit_")
    return (
        LIMIT_PREFIX + kind.value.removeprefix("limit_")
        if is_limit
        else (CONSUMER_PREFIX + kind.value)
    )


def event(notification: NotificationContent) -> dict[str, Any]:
    """Return the body of the event in the form that Standard Webhooks recommends."""
    scope, _, name = notification.limit.partition(" ")
    about: dict[str, Any] = (
        {"limit": scope, "name": name}
        if notification.limit
        else {
            "channel": notification.channel,
            "consumer": notification.client_id,
            "team": notification.team or None,
        }
    )
    return {
        "type": event_type(notification.kind),
        "timestamp": _instant(notification.at),
        "data": about | {"reason": notification.reason, "url": notification.page or None},
    }


def drift(host: str, offset_ms: int, at: datetime) -> dict[str, Any]:
    """Return the body of the event about a host's clock being ahead of the database's."""
    return {
        "type": DRIFT,
        "timestamp": _instant(at),
        "data": {"host": host, "offset_ms": offset_ms},
    }


def subject(notification: NotificationContent) -> str:
    """Return the subject line of the e-mail."""
    about = notification.limit or f"{notification.channel}/{notification.client_id}"
    return f"{about} {_PHRASES[notification.kind]}"


def text(notification: NotificationContent) -> str:
    """Return the e-mail: what happened, what the broker does about it, what to do."""
    at = notification.at.strftime("%Y-%m-%d %H:%M UTC")
    subject = f"Your webhook {notification.client_id} on the channel {notification.channel}"
    if notification.limit:
        subject = f"Your {notification.limit}"
    parts = [
        f"{subject} {_PHRASES[notification.kind]} ({at}).",
        notification.reason,
        _NEXT[notification.kind],
        f"Details: {notification.page}" if notification.page else "",
        "Owners and editors of the team get this e-mail once per change, not for each failure.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def quota_level(reported: str, share: float) -> str:
    """Return the current level, given the last reported one; ``share`` may exceed 1.0."""
    if share >= 1.0:
        return QUOTA_FULL
    if share >= QUOTA_NEAR:
        return QUOTA_NEARLY
    return reported if reported == QUOTA_OK or share >= QUOTA_CALM else QUOTA_OK


def _instant(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
