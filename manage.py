#!/usr/bin/env python
"""Command line entry: Django's management commands with this project's settings."""

import os
import sys

from django.core.management import execute_from_command_line

from broker_site import demo, env


def main() -> None:
    """Run the command that the arguments name."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_site.settings")
    try:
        if sys.argv[1:2] == ["demo"]:
            demo.prepare(sys.argv[2:])
        execute_from_command_line(sys.argv)
    except env.BadEnvironment as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
