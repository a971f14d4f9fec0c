"""Outbox: notices that are still to be told, as an event and by e-mail, each one process's."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import QuerySet

from channels_app.models import Membership
from delivery.models import Notice

BATCH = 1000
LEASE = timedelta(minutes=5)
"""How long an e-mail is one process's to send."""
FIRST_WAIT = timedelta(minutes=1)
MAX_MAILS = 8
"""Tries: the last one after about two hours."""
ABOUT = ("consumer__channel", "consumer__team", "team")
ROLES = (Membership.Role.OWNER.value, Membership.Role.EDITOR.value)


def unpublished() -> list[int]:
    """Notices whose event is still to be published, oldest first."""
    rows = Notice.objects.filter(published=False).order_by("id")
    return list(rows.values_list("id", flat=True)[:BATCH])


def take(notice_id: int) -> Notice | None:
    """The notice, ours to publish in the caller's transaction; None when another was faster."""
    if not Notice.objects.filter(id=notice_id, published=False).update(published=True):
        return None
    return Notice.objects.select_related(*ABOUT).get(id=notice_id)


def became(notice: Notice, message_id: int) -> None:
    """Keep which message the event is, in the transaction that stored it."""
    Notice.objects.filter(id=notice.id).update(message_id=message_id)


def has_mail(now: datetime) -> bool:
    """Whether an e-mail is due."""
    return Notice.objects.filter(mail_due_at__lte=now).exists()


def claim(now: datetime) -> Notice | None:
    """An e-mail that is due, ours to send for a while; None when there is none.

    One whose senders vanished each time is given up: it may be what they vanish of.
    """
    vanished = Notice.objects.filter(mail_due_at__lte=now, mail_count__gte=MAX_MAILS)
    vanished.update(mail_due_at=None, mail_error="The last try ended without a result.")
    due = Notice.objects.filter(mail_due_at__lte=now).order_by("mail_due_at")
    for notice in due.select_related(*ABOUT)[:10]:
        mine = Notice.objects.filter(id=notice.id, mail_count=notice.mail_count)
        notice.mail_count += 1
        if mine.update(mail_due_at=now + LEASE, mail_count=notice.mail_count):
            return notice
    return None


def recipients(team_id: int) -> list[str]:
    """Addresses of those who can mend a team's consumers."""
    people = Membership.objects.filter(team_id=team_id, role__in=ROLES, user__is_active=True)
    return sorted(set(people.exclude(user__email="").values_list("user__email", flat=True)))


def sent(notice: Notice, addresses: Sequence[str]) -> None:
    """Note that the e-mail is out, or that there is nobody to send it to."""
    _ours(notice).update(mail_due_at=None, mailed_to=list(addresses), mail_error="")


def failed(notice: Notice, error: str, now: datetime) -> None:
    """Try again later, for a few hours."""
    wait = FIRST_WAIT * 2 ** (notice.mail_count - 1)
    again = now + wait if notice.mail_count < MAX_MAILS else None
    _ours(notice).update(mail_due_at=again, mail_error=error[:300])


def _ours(notice: Notice) -> QuerySet[Notice]:
    # Fenced: a sender that took longer than its lease has lost its say.
    return Notice.objects.filter(id=notice.id, mail_count=notice.mail_count)
