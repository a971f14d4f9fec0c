"""Provide ``manage.py generate_encryption_key``, which prints a new encryption key."""

from typing import Any

from channels_app.rules.encryption import generate_key
from delivery.management.base import Command as BaseCommand


class Command(BaseCommand):
    """Prints a key; changes nothing."""

    help = (
        "Print a new key for message bodies and secrets at rest (AES-256, base64).\n\n"
        "Keep it where secrets are kept: what it sealed cannot be read without it."
    )
    examples = (
        "  manage.py generate_encryption_key > /etc/hookstation/key\n"
        "  first key:\n"
        "      HOOKSTATION_ENCRYPTION_KEYS_FILE=/etc/hookstation/key\n"
        "  rotation: put the new key in front of the old one, comma between them,\n"
        "      restart every process, run `manage.py rotate_keys`,\n"
        "      take the old key away."
    )
    requires_system_checks = []

    def handle(self, **options: Any) -> None:
        """Print the key alone on standard output."""
        self.stdout.write(generate_key())
