"""Prepare the environment of ``manage.py demo``: a folder, database and keys of its own.

It runs before Django reads its settings. The demo uses no setting of an installation on the same
machine, and never writes into an installation's database.
"""

import argparse
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path

from broker_site import env
from channels_app.core.encryption import generate_key
from channels_app.core.program import typed
from channels_app.database import dialects

FOLDER = "demo"
FILE = "demo.env"
DEFAULT_PORT = "8000"
HEADER = """\
# Made by `manage.py demo`. To use other commands on the demo's data:
#   set -a; . path/to/this/file; set +a; python manage.py doctor
"""


def prepare(arguments: Sequence[str]) -> None:
    """Set the variables for ``manage.py demo`` with these arguments; create keys on first use.

    Does nothing if the arguments ask for help. The command itself validates the arguments. Raises
    BadEnvironment if the folder is not writable.
    """
    if {"-h", "--help"} & set(arguments):
        return
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--port", default=DEFAULT_PORT)
    options, _ = parser.parse_known_args(arguments)
    folder = env.read().data_dir.absolute() / FOLDER
    try:
        kept = _keep(folder)
    except OSError as error:
        raise env.BadEnvironment(
            f"The demo cannot write to {folder}: {error.strerror}. Set HOOKSTATION_DATA_DIR to a "
            "folder of yours."
        ) from None
    env.replace(
        kept
        | {
            "DJANGO_SETTINGS_MODULE": "broker_site.settings",
            "HOOKSTATION_PUBLIC_URL": f"http://127.0.0.1:{options.port}",
            "HOOKSTATION_LOG_LEVEL": "ERROR",
            "EMAIL_URL": f"filemail:///{folder / 'mail'}",
            # A demo should stop at once.
            "HOOKSTATION_SHUTDOWN_GRACE_S": "5",
            "HOOKSTATION_WEB_WORKERS": "1",
        }
    )


def _keep(folder: Path) -> dict[str, str]:
    """The values that persist between starts, in a file that a shell can read as well."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / FILE
    kept: dict[str, str] = {}
    if path.exists():
        for word in shlex.split(path.read_text("utf-8"), comments=True):
            name, _, value = word.partition("=")
            kept[name] = value
    values = {
        "SECRET_KEY": kept.get("SECRET_KEY") or secrets.token_urlsafe(50),
        "HOOKSTATION_ENCRYPTION_KEYS": kept.get("HOOKSTATION_ENCRYPTION_KEYS") or generate_key(),
        "DATABASE_URL": dialects.EMBEDDED.url_in(folder),
        "HOOKSTATION_DATA_DIR": str(folder),
        "HOOKSTATION_ALLOWED_TARGETS": "127.0.0.0/8",
    }
    if kept != values:
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in values.items()]
        path.touch(mode=0o600)
        path.write_text(typed(HEADER) + "".join(lines), "utf-8")
    return values
