"""Send the portal's mail: plain text, after the commit; a failure has no other effect."""

import logging
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.core.mail import send_mail
from django.template.loader import render_to_string

log = logging.getLogger(__name__)


def send(to: str, subject: str, template: str, context: dict[str, Any]) -> bool:
    """Whether the mail was handed over to the server; False also if mail is not configured."""
    if not settings.CAN_MAIL:
        return False
    text = render_to_string(template, context)
    try:
        return bool(send_mail(f"[Hookstation] {subject}", text, None, [to]))
    except (OSError, SMTPException) as error:
        log.warning("mail could not be sent: %s", error)
        return False
