"""Publish notifications as events, and mail them to the consumer's owners."""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from smtplib import SMTPDataError, SMTPRecipientsRefused

from django.core.mail import EmailMessage, get_connection
from django.db.models import QuerySet

from channels_app.conf import conf
from channels_app.database import clock, transactions
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import Membership
from channels_app.registry.cache import ChannelConfig, config_cache
from delivery.core import notifications
from delivery.core.health_status import NotificationKind
from delivery.core.notifications import NotificationContent
from delivery.health import monitor
from delivery.models import Notification
from delivery.processes import registration, task_queue

logger = logging.getLogger(__name__)
BATCH = 1000
LEASE = timedelta(minutes=5)
"""How long one process has to send an e-mail that it has claimed."""
FIRST_WAIT = timedelta(minutes=1)
MAX_MAILS = 8
"""Most tries; the last one is after about two hours."""
ABOUT = ("consumer__channel", "consumer__team", "team")
ROLES = (Membership.Role.OWNER.value, Membership.Role.EDITOR.value)
CHANNEL = "hookstation"
"""Reserved name: if the operator creates this internal channel, it gets all events."""
MAIL_TIMEOUT_S = 10
MAILS_AT_ONCE = 100
DRIFT_MS = 1000
"""Difference between a host's clock and the database's from which operators are notified."""
WARN_S = 3600.0
"""Interval at which the log repeats the warning."""
MAILS_S = 120.0
"""Seconds that one task sends e-mails: much less than django-q2 allows."""

_warned: dict[str, float] = {}


def unpublished() -> list[int]:
    """Return notifications whose event is not published yet, oldest first."""
    rows = Notification.objects.filter(published=False).order_by("id")
    return list(rows.values_list("id", flat=True)[:BATCH])


def take(notice_id: int) -> Notification | None:
    """Claim a notification for publishing in this transaction; None if another process has."""
    if not Notification.objects.filter(id=notice_id, published=False).update(published=True):
        return None
    return Notification.objects.select_related(*ABOUT).get(id=notice_id)


def became(notice: Notification, message_id: int) -> None:
    """Store the id of the event's message, in the transaction that stored it."""
    Notification.objects.filter(id=notice.id).update(message_id=message_id)


def has_mail(now: datetime) -> bool:
    """Return whether an e-mail is due."""
    return Notification.objects.filter(mail_due_at__lte=now).exists()


def claim(now: datetime) -> Notification | None:
    """Claim a due e-mail for a limited time; return None when there is none.

    An e-mail whose senders disappeared at every try is abandoned: it may be the cause.
    """
    vanished = Notification.objects.filter(mail_due_at__lte=now, mail_count__gte=MAX_MAILS)
    vanished.update(mail_due_at=None, mail_error="The last attempt ended without a result.")
    due = Notification.objects.filter(mail_due_at__lte=now).order_by("mail_due_at")
    for notice in due.select_related(*ABOUT)[:10]:
        unchanged = Notification.objects.filter(id=notice.id, mail_count=notice.mail_count)
        notice.mail_count += 1
        if unchanged.update(mail_due_at=now + LEASE, mail_count=notice.mail_count):
            return notice
    return None


def recipients(team_id: int) -> list[str]:
    """Return the addresses of people who may change a team's consumers."""
    people = Membership.objects.filter(team_id=team_id, role__in=ROLES, user__is_active=True)
    return sorted(set(people.exclude(user__email="").values_list("user__email", flat=True)))


def sent(notice: Notification, addresses: Sequence[str]) -> None:
    """Record that the e-mail was sent, or that it has no recipients."""
    _ours(notice).update(mail_due_at=None, mailed_to=list(addresses), mail_error="")


def failed(notice: Notification, error: str, now: datetime) -> None:
    """Schedule the next try; tries end after a few hours."""
    wait = FIRST_WAIT * 2 ** (notice.mail_count - 1)
    next_try_at = now + wait if notice.mail_count < MAX_MAILS else None
    _ours(notice).update(mail_due_at=next_try_at, mail_error=error[:300])


def sweep() -> Iterator[int]:
    """Record changes and publish them. A separate task of django-q2 sends the e-mails.

    Yields the number of notifications that each step created or published.
    """
    yield from monitor.watch(clock.now())
    yield from _clocks()
    for notice_id in unpublished():
        yield _publish(notice_id)
    if has_mail(clock.now()) and not task_queue.is_queued(task_queue.MAIL):
        task_queue.add(task_queue.MAIL)


def is_drift(offset_ms: int) -> bool:
    """Whether a host's clock differs so much from the database's that operators are notified."""
    return abs(offset_ms) >= DRIFT_MS


def mail() -> int:
    """Send due e-mails; return how many were sent.

    After a failure of the mail server the rest waits for the next task: it would fail as well.
    """
    count, end = 0, time.monotonic() + MAILS_S
    for _ in range(MAILS_AT_ONCE):
        notice = claim(clock.now())
        if notice is None:
            break
        try:
            count += _mail(notice)
        except OSError:
            break
        if time.monotonic() >= end:
            break
    return count


def _ours(notice: Notification) -> QuerySet[Notification]:
    # Fenced: a sender that took longer than its lease changes nothing.
    return Notification.objects.filter(id=notice.id, mail_count=notice.mail_count)


def _clocks() -> Iterator[int]:
    """Publish which hosts' clocks have drifted, once an hour for each host."""
    hosts = {slot.host: slot for slot in registration.living() if is_drift(slot.clock_offset_ms)}
    channel = _operators() if hosts else None
    for host, slot in hosts.items():
        if time.monotonic() - _warned.get(host, float("-inf")) > WARN_S:
            _warned[host] = time.monotonic()
            logger.warning(
                "the clock of %s differs by %+d ms from the database's", host, slot.clock_offset_ms
            )
        if channel is None:
            continue
        now = clock.now()
        body = notifications.drift(host, slot.clock_offset_ms, now)
        publication = Publication(
            json.dumps(body).encode(),
            content_type="application/json",
            event_type=notifications.DRIFT,
            idempotency_key=f"clock of {host[:200]} {now:%Y-%m-%d %H}",
        )
        if accept.earlier_result(channel, None, publication) is None:
            yield len(accept.accept(channel, None, [publication], within_quota=False))


def _operators() -> ChannelConfig | None:
    channel = config_cache.channel(CHANNEL)
    return channel if channel is not None and channel.exposure == "internal" else None


def _publish(notice_id: int) -> int:
    return transactions.run(lambda: _published(notice_id))


def _published(notice_id: int) -> int:
    """Mark the notification and store its message in one transaction, so it is published once."""
    notice = take(notice_id)
    if notice is None:
        return 0
    notification = _notification(notice)
    channel = _channel(notification)
    if channel is not None:
        body = json.dumps(notifications.event(notification), ensure_ascii=False).encode()
        publication = Publication(
            body,
            content_type="application/json",
            event_type=notifications.event_type(notification.kind),
        )
        (accepted,) = accept.accept(channel, None, [publication], within_quota=False)
        became(notice, accepted.message_id)
    return 1


def _notification(notice: Notification) -> NotificationContent:
    consumer = notice.consumer
    if consumer is None:
        return NotificationContent(
            kind=NotificationKind(notice.kind),
            at=notice.at,
            channel="",
            client_id="",
            team=notice.team.slug if notice.team else "",
            reason=notice.reason,
            page=f"{conf().public_url}/portal/{notice.team.slug}/" if notice.team else "",
            limit=notice.limit,
        )
    team = consumer.team.slug if consumer.team else ""
    channel, name = consumer.channel.slug, consumer.client_id
    path = f"/portal/{team}/webhooks/{channel}/{name}/" if team else ""
    return NotificationContent(
        kind=NotificationKind(notice.kind),
        at=notice.at,
        channel=channel,
        client_id=name,
        team=team,
        reason=notice.reason,
        page=f"{conf().public_url}{path}" if path else "",
    )


def _channel(notification: NotificationContent) -> ChannelConfig | None:
    """Return the channel for events; None if there is no such channel.

    It has the events of all teams and must be internal, so that no team can register there.
    Notifications about its own consumers are not published to it.
    """
    return None if notification.channel == CHANNEL else _operators()


def _mail(notice: Notification) -> int:
    """Send one e-mail and record the result; raises OSError if the mail server fails."""
    team_id = notice.team_id if notice.consumer is None else notice.consumer.team_id
    addresses = recipients(team_id) if team_id is not None else []
    if not addresses:
        sent(notice, [])
        return 0
    notification = _notification(notice)
    message = EmailMessage(
        notifications.subject(notification), notifications.text(notification), to=addresses
    )
    try:
        message.connection = get_connection(timeout=MAIL_TIMEOUT_S)
        message.send()
    # An invalid address is a ValueError; all errors of smtplib are OSErrors.
    except (OSError, ValueError) as error:
        logger.warning("a notification cannot be mailed: %s", error)
        failed(notice, f"{type(error).__name__}: {error}", clock.now())
        if isinstance(error, ValueError | SMTPRecipientsRefused | SMTPDataError):
            return 0
        raise
    sent(notice, addresses)
    return 1
