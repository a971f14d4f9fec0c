"""Provide ``manage.py delete_channel``, the only way to delete a channel and its history."""

import sys
import time
from typing import Any

from django.core.management.base import CommandParser

from channels_app.models import Channel, Consumer
from channels_app.registry.cache import CHECK_S
from delivery.maintenance import channel_erasure
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, ProgressBar, counted, principal

ROUNDS = 5
"""Maximum passes over rows that arrive while the channel is being deleted."""


class Command(BaseCommand):
    """Asks for confirmation, then erases the channel with a progress bar."""

    help = (
        "Delete a channel with everything registered, scheduled and stored on it. This cannot\n"
        "be undone.\n\n"
        "Nothing else deletes a channel. To stop one for a while, pause it: its messages are\n"
        "kept until it is resumed. The deletion is recorded in the audit log. It runs beside the\n"
        "broker, in small transactions; if interrupted, it continues when run again.\n\n"
        "While deliveries wait to be sent, it requires --force."
    )
    examples = (
        "  manage.py delete_channel orders                       asks first\n"
        "  manage.py delete_channel orders --yes-delete orders   for scripts\n"
        "  manage.py delete_channel orders --force               if some wait\n"
        "  manage.py delete_channel orders --dry-run             only counts"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the channel and the confirmation."""
        parser.add_argument("channel", metavar="CHANNEL", help="name of the channel")
        parser.add_argument(
            "--yes-delete",
            metavar="CHANNEL",
            help="the channel's name, to confirm without being asked",
        )
        parser.add_argument(
            "--force", action="store_true", help="also delete deliveries that wait to be sent"
        )
        parser.add_argument("--reason", default="", metavar="TEXT", help="reason for the audit log")
        parser.add_argument("--dry-run", action="store_true", help="only count, change nothing")

    def handle(
        self,
        *,
        channel: str,
        yes_delete: str | None,
        force: bool,
        reason: str,
        dry_run: bool,
        **options: Any,
    ) -> None:
        """Exit with code 1 when refused or unknown."""
        row = Channel.objects.filter(slug=channel).first()
        if row is None:
            raise Error(_unknown(channel))
        going = channel_erasure.count_rows(row)
        self._describe(channel, going)
        if dry_run:
            self.stdout.write("Nothing was changed (--dry-run).")
            return
        if going.waiting and not force:
            waiting = counted(going.waiting, "delivery")
            raise Error(
                f"Nothing was changed: {waiting} would never be sent. Add --force to delete them."
            )
        self._confirm(channel, yes_delete)
        erased = self._erase(row, going, reason)
        self.stdout.write(
            self.style.SUCCESS(f"Channel {channel} is deleted, with {counted(erased, 'row')}.")
        )

    def _describe(self, channel: str, going: channel_erasure.RowCounts) -> None:
        self.stdout.write(f"Channel {channel} has")
        for number, noun in (
            (going.consumers, "consumer"),
            (going.event_types, "event type"),
            *(((going.schedules, "schedule"),) if going.schedules else ()),
            (going.messages, "message"),
            (going.deliveries, "delivery"),
        ):
            self.stdout.write(f"  {counted(number, noun)}")
        if going.waiting:
            text = f"{counted(going.waiting, 'delivery')} not sent yet will never be sent."
            self.stdout.write(self.style.WARNING(text))

    def _confirm(self, channel: str, yes_delete: str | None) -> None:
        if yes_delete is None:
            if not sys.stdin.isatty():
                raise Error(
                    f"Nothing was changed. Without a terminal, confirm with --yes-delete {channel}"
                )
            self.stdout.write(
                "This cannot be undone. Type the channel's name to delete it: ", ending=""
            )
            self.stdout.flush()
            yes_delete = sys.stdin.readline().strip()
        if yes_delete != channel:
            raise Error(f"Nothing was changed: {yes_delete!r} is not {channel!r}.")

    def _erase(self, channel: Channel, going: channel_erasure.RowCounts, reason: str) -> int:
        who = principal().because(reason)
        consumer_ids = list(Consumer.objects.filter(channel=channel).values_list("id", flat=True))
        channel_erasure.close(channel, who, going)
        progress = ProgressBar(self.stdout, going.deliveries + going.messages, "rows")
        erased = 0
        for _ in range(ROUNDS):
            for batch in channel_erasure.rows(channel):
                erased += batch
                progress.show(erased)
            if channel_erasure.finish(channel, who):
                break
        else:
            progress.close()
            raise Error(
                f"Messages keep arriving on {channel.slug}. Revoke or restrict the keys that "
                "publish there, then run this command again."
            )
        progress.close()
        # By then every process has refreshed its configuration and no longer knows the channel.
        time.sleep(2 * CHECK_S)
        return erased + channel_erasure.left_over_rows(channel.id, consumer_ids)


def _unknown(channel: str) -> str:
    slugs = list(Channel.objects.order_by("slug").values_list("slug", flat=True)[:20])
    choices = f"There are: {', '.join(slugs)}." if slugs else "There are none."
    return f"There is no channel {channel!r}. {choices}"
