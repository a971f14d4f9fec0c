"""Run the command line: `manage.py` in a checkout, `hookstation` for an installed package."""

import os
import sys
import textwrap
from collections.abc import Sequence

from django.core.management import ManagementUtility
from django.core.management.color import color_style

from broker_site import __version__, demo, env
from channels_app.core import program

GROUPS: dict[str, dict[str, str]] = {
    "Run": {
        "demo": "Run everything with sample data.",
        "broker": "Run the broker: web server and delivery workers.",
        "worker": "Run the delivery workers alone.",
        "grpc": "Run the gRPC server alone.",
    },
    "Set up": {
        "migrate": "Create or update the tables.",
        "createsuperuser": "Create a login for the console.",
        "doctor": "Print what is wrong with an installation, and how to fix it.",
        "generate_encryption_key": "Generate an encryption key.",
        "rotate_keys": "Encrypt everything with a new encryption key.",
    },
    "Configure": {
        "apply": "Create or change teams, channels, event types, producers, consumers and "
        "schedules from a file.",
        "create_api_key": "Create an API key.",
        "delete_channel": "Delete a channel and its history permanently.",
    },
    "Try": {
        "publish": "Publish a file of messages.",
        "listen": "Show a channel's messages as they arrive, and forward them to this machine.",
        "receiver": "Run a small consumer for trying things out.",
    },
    "Look after": {
        "reconcile": "Compare accepted messages with their deliveries; exit code 1 on a "
        "discrepancy.",
        "repair_counters": "Recount the rows and correct the counters.",
        "estimate_ordering": "Estimate the cost of ordered delivery.",
        "pipeline": "Run a job of the data pipeline: archive, usage, health, triage and more.",
    },
}
"""The project's commands and the most important ones of Django. docs/commands.md repeats these
texts."""
WIDTH = 80


class CommandLine(ManagementUtility):
    """Django's commands, with a help text that fits on one screen."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(list(words))
        self.prog_name = program.name()

    def main_help_text(self, commands_only: bool = False) -> str:
        """The project's commands in groups; with ``commands_only`` all names, also Django's."""
        if commands_only:
            return super().main_help_text(commands_only=True)
        style, name = color_style(), self.prog_name
        wide = max(len(command) for group in GROUPS.values() for command in group)
        lines = [f"Hookstation {__version__}, a reliable webhook broker.", ""]
        lines.append(f"Usage: {name} COMMAND [options]")
        for title, commands in GROUPS.items():
            lines += ["", style.NOTICE(title)]
            for command, text in commands.items():
                first, *rest = textwrap.wrap(text, WIDTH - wide - 4)
                lines.append(f"  {command:{wide}}  {first}")
                lines += [" " * (wide + 4) + line for line in rest]
        lines += [
            "",
            f"{name} COMMAND --help says more.",
            f"{name} help --commands lists Django's too.",
        ]
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in ``arguments``, by default those of the process."""
    words = list(sys.argv if arguments is None else arguments)
    env.export("DJANGO_SETTINGS_MODULE", "broker_site.settings")
    env.extend_python_path()
    env.name_command(words[0])
    program.use(env.command())
    match words[1:]:
        case [] | ["help" | "--help" | "-h"]:
            # Without loading the settings, which would create the data directory.
            sys.stdout.write(f"{CommandLine(words).main_help_text()}\n")
        case ["version" | "--version"]:
            sys.stdout.write(f"{__version__}\n")
        case ["pipeline", *rest]:
            os.execv(sys.executable, [sys.executable, "-m", "pipeline", *rest])  # noqa: S606 - itself
        case _:
            _run(words)


def _run(words: Sequence[str]) -> None:
    try:
        if words[1] == "demo":
            demo.prepare(words[2:])
        CommandLine(words).execute()
    except env.BadEnvironment as error:
        sys.exit(f"Error: {error}")
