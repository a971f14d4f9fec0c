"""Provide ``manage.py create_api_key``, which prints a new API key on standard output."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from channels_app.core.errors import BrokerError
from channels_app.core.keys import SCOPES
from channels_app.database import clock
from channels_app.models import ApiKey, Producer
from channels_app.registry import api_keys, producers
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, principal

LISTED = 20
MAX_DAYS = 3650


class Command(BaseCommand):
    """Prints a key created by channels_app/registry/api_keys.py."""

    help = (
        "Create an API key of a producer. Only the key is printed on standard output, everything\n"
        "else on standard error, so that you can redirect it into a file or a secret store. The\n"
        "broker stores only a digest: if a key is lost, create another. With --sigv4 two lines\n"
        "for SQS clients follow the key: AWS_ACCESS_KEY_ID=... and AWS_SECRET_ACCESS_KEY=..."
    )
    examples = (
        "  manage.py create_api_key shop --channel orders > shop.key\n"
        "  manage.py create_api_key shop --existing --channel orders \\\n"
        "      --expires-days 90\n"
        "  manage.py create_api_key ops --scope admin --label 'deploy script'\n"
        '  eval "$(manage.py create_api_key ops --scope admin --sigv4 \\\n'
        '      | grep ^AWS_)"'
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add producer, scopes, channels and expiry."""
        parser.add_argument("producer", metavar="PRODUCER", help="name of the producer")
        parser.add_argument(
            "--existing",
            action="store_true",
            help="fail if the producer does not exist, instead of creating it",
        )
        parser.add_argument(
            "--scope",
            action="append",
            dest="scopes",
            choices=SCOPES,
            metavar="SCOPE",
            help=f"what the key may do: {', '.join(SCOPES)}; may be repeated (default: publish)",
        )
        parser.add_argument(
            "--channel",
            action="append",
            dest="channels",
            default=[],
            metavar="CHANNEL",
            help="a channel that the key may use; may be repeated",
        )
        parser.add_argument(
            "--all-channels",
            action="store_true",
            help="every channel, including future ones; --scope admin implies it",
        )
        parser.add_argument(
            "--expires-days", type=float, metavar="N", help="days until it expires (default: never)"
        )
        parser.add_argument(
            "--sigv4",
            action="store_true",
            help="also create a key pair for AWS Signature Version 4, for SQS clients",
        )
        parser.add_argument("--label", default="", metavar="TEXT", help="label shown to people")

    def handle(
        self,
        *,
        producer: str,
        existing: bool,
        scopes: list[str] | None,
        channels: list[str],
        all_channels: bool,
        sigv4: bool,
        expires_days: float | None,
        label: str,
        **options: Any,
    ) -> None:
        """Exit with code 1 when the producer or a channel is unknown."""
        values: dict[str, Any] = {
            "label": label,
            "scopes": list(dict.fromkeys(scopes or ["publish"])),
            "channels": list(dict.fromkeys(channels)),
            # An admin key covers all channels, so requesting one implies --all-channels.
            "all_channels": all_channels or (not channels and "admin" in (scopes or ())),
            "sigv4": sigv4,
        }
        if expires_days is not None:
            values["expires_at"] = _in_days(expires_days)
        row = Producer.objects.filter(slug=producer).first()
        if row is None and existing:
            raise Error(_unknown(producer))
        try:
            # A refused key must not leave a new producer behind.
            with transaction.atomic():
                if row is None:
                    producers.put(producer, {}, principal=principal())
                created = api_keys.create(values, principal=principal(), producer=producer)
        except BrokerError as error:
            raise Error(error.detail) from None
        if row is None:
            self.stderr.write(
                f"There was no producer {producer}: it was created.", self.style.NOTICE
            )
        elif row.disabled:
            text = f"Producer {producer} is disabled: the key works once it is enabled."
            self.stderr.write(text, self.style.WARNING)
        self.stderr.write(_described(created.row, producer), self.style.NOTICE)
        for line in api_keys.Shown(*created.secrets).lines:
            self.stdout.write(line)


def _in_days(days: float) -> int:
    """Return the time in so many days in Unix milliseconds."""
    if not 0 < days <= MAX_DAYS:
        raise Error(f"--expires-days must be above 0 and at most {MAX_DAYS}.")
    return int((clock.now() + timedelta(days=days)).timestamp() * 1000)


def _described(key: ApiKey, producer: str) -> str:
    where = ", ".join(key.channels) or "all channels"
    until = f"until {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at else "without expiry"
    return f"Key {key.key_id} of {producer}: {', '.join(key.scopes)} on {where}, {until}."


def _unknown(producer: str) -> str:
    slugs = list(Producer.objects.order_by("slug").values_list("slug", flat=True)[:LISTED])
    choices = f"There are: {', '.join(slugs)}." if slugs else "There are none yet."
    return f"There is no producer {producer!r}. {choices} To create it, leave out --existing."
