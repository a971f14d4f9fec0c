"""Mail of the portal: plain text, sent after the commit; that it fails undoes nothing."""

import logging
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.core.mail import send_mail
from django.template.loader import render_to_string

log = logging.getLogger(__name__)


def send(to: str, subject: str, template: str, context: dict[str, Any]) -> bool:
    """Whether it was handed over; False also where there is no mail."""
    if not settings.CAN_MAIL:
        return False
    text = render_to_string(template, context)
    try:
        return bool(send_mail(f"[Hookstation] {subject}", text, None, [to]))
    except (OSError, SMTPException) as error:
        log.warning("mail could not be sent: %s", error)
        return False
