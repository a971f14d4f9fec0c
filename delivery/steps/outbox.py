"""The outbox of notifications: claim each for one process, as an event and as an e-mail."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import QuerySet

from channels_app.models import Membership
from delivery.models import Notice

BATCH = 1000
LEASE = timedelta(minutes=5)
"""How long one process has to send an e-mail that it has claimed."""
FIRST_WAIT = timedelta(minutes=1)
MAX_MAILS = 8
"""Most tries; the last one is after about two hours."""
ABOUT = ("consumer__channel", "consumer__team", "team")
ROLES = (Membership.Role.OWNER.value, Membership.Role.EDITOR.value)


def unpublished() -> list[int]:
    """Return notifications whose event is not published yet, oldest first."""
    rows = Notice.objects.filter(published=False).order_by("id")
    return list(rows.values_list("id", flat=True)[:BATCH])


def take(notice_id: int) -> Notice | None:
    """Claim a notification for publishing in this transaction; None if another process has."""
    if not Notice.objects.filter(id=notice_id, published=False).update(published=True):
        return None
    return Notice.objects.select_related(*ABOUT).get(id=notice_id)


def became(notice: Notice, message_id: int) -> None:
    """Store the id of the event's message, in the transaction that stored it."""
    Notice.objects.filter(id=notice.id).update(message_id=message_id)


def has_mail(now: datetime) -> bool:
    """Return whether an e-mail is due."""
    return Notice.objects.filter(mail_due_at__lte=now).exists()


def claim(now: datetime) -> Notice | None:
    """Claim a due e-mail for a limited time; return None when there is none.

    An e-mail whose senders disappeared at every try is abandoned: it may be the cause.
    """
    vanished = Notice.objects.filter(mail_due_at__lte=now, mail_count__gte=MAX_MAILS)
    vanished.update(mail_due_at=None, mail_error="The last attempt ended without a result.")
    due = Notice.objects.filter(mail_due_at__lte=now).order_by("mail_due_at")
    for notice in due.select_related(*ABOUT)[:10]:
        mine = Notice.objects.filter(id=notice.id, mail_count=notice.mail_count)
        notice.mail_count += 1
        if mine.update(mail_due_at=now + LEASE, mail_count=notice.mail_count):
            return notice
    return None


def recipients(team_id: int) -> list[str]:
    """Return the addresses of people who may change a team's consumers."""
    people = Membership.objects.filter(team_id=team_id, role__in=ROLES, user__is_active=True)
    return sorted(set(people.exclude(user__email="").values_list("user__email", flat=True)))


def sent(notice: Notice, addresses: Sequence[str]) -> None:
    """Record that the e-mail was sent, or that it has no recipients."""
    _ours(notice).update(mail_due_at=None, mailed_to=list(addresses), mail_error="")


def failed(notice: Notice, error: str, now: datetime) -> None:
    """Schedule the next try; tries end after a few hours."""
    wait = FIRST_WAIT * 2 ** (notice.mail_count - 1)
    next_try_at = now + wait if notice.mail_count < MAX_MAILS else None
    _ours(notice).update(mail_due_at=next_try_at, mail_error=error[:300])


def _ours(notice: Notice) -> QuerySet[Notice]:
    # Fenced: a sender that took longer than its lease changes nothing.
    return Notice.objects.filter(id=notice.id, mail_count=notice.mail_count)
