"""Provide ``manage.py generate_encryption_key``, which prints a new encryption key."""

from typing import Any

from channels_app.core.encryption import generate_key
from delivery.management.base import Command as BaseCommand


class Command(BaseCommand):
    """Prints a key; changes nothing."""

    help = (
        "Print a new key that encrypts message bodies and secrets at rest (AES-256, base64).\n\n"
        "Keep it as you keep secrets: data that it encrypts cannot be read without it."
    )
    examples = (
        "  manage.py generate_encryption_key > /etc/hookstation/key\n"
        "  first key:\n"
        "      HOOKSTATION_ENCRYPTION_KEYS_FILE=/etc/hookstation/key\n"
        "  rotation: put the new key in front of the old one, separated by a comma,\n"
        "      restart every process, run `manage.py rotate_keys`,\n"
        "      remove the old key."
    )
    requires_system_checks = []

    def handle(self, **options: Any) -> None:
        """Print the key alone on standard output."""
        self.stdout.write(generate_key())
