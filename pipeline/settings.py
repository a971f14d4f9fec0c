"""Read the pipeline's settings from its environment (docs/settings.md has each variable).

No other module reads the environment. The broker reads the same variables with code of its own; the
two share none on purpose.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pipeline.core import encryption

BASE_DIR = Path(__file__).resolve().parent.parent
LAKE = "HOOKSTATION_LAKE"
READ_URL = "HOOKSTATION_LAKE_READ_URL"
"""The variable that names the database for bulk reads to Spark's workers."""
ENCRYPTION_KEYS = "HOOKSTATION_ENCRYPTION_KEYS"
"""The variable that holds the broker's encryption keys for them."""
COMMAND = "HOOKSTATION_COMMAND"
"""The command that a person typed, when `hookstation` or `manage.py` started the program."""
CHECKOUT = "python manage.py"


def command(environ: Mapping[str, str] = os.environ) -> str:
    """Return what people type before a command of the broker."""
    return environ.get(COMMAND) or CHECKOUT


def job_command(environ: Mapping[str, str] = os.environ) -> str:
    """Return what people type before a job."""
    name = command(environ)
    return "python -m pipeline" if name == CHECKOUT else f"{name} pipeline"


class InvalidSetting(Exception):
    """A variable is invalid; the message names it and the accepted values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an installation."""

    database_url: str
    read_url: str
    """Database for bulk reads: a replica, or the broker's own."""
    lake: Path | None
    """None: no archive, and reports cover only rows in the database."""
    master: str
    """Spark's master: ``local[2]``, ``spark://host:7077``, ``k8s://...``."""
    memory: str
    """The driver's Java heap, as Spark writes it: ``1g``."""
    partitions: int
    """Connections with which a job reads the database."""
    lag: timedelta
    """Longest time between generating a row's key and its commit."""
    keep_bodies: bool
    retention_days: int
    dead_retention_days: int
    folder: Path
    """Folder of files made at run time."""
    python: str
    """The interpreter of Spark's Python workers."""
    encryption_keys: str = ""
    """The broker's keys, comma-separated, to decrypt responses that it encrypted. Empty: none is
    decrypted."""


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment as typed values. Raises InvalidSetting naming the variable."""
    folder = Path(_text(environ, "HOOKSTATION_DATA_DIR") or BASE_DIR / "data")
    database_url = _text(environ, "DATABASE_URL") or f"sqlite:///{folder / 'hookstation.sqlite3'}"
    return Settings(
        database_url=database_url,
        read_url=_text(environ, READ_URL) or database_url,
        lake=_lake_folder(_text(environ, LAKE)),
        master=_text(environ, "HOOKSTATION_SPARK_MASTER") or "local[*]",
        memory=_text(environ, "HOOKSTATION_SPARK_MEMORY") or "1g",
        partitions=_number(environ, "HOOKSTATION_LAKE_CONNECTIONS", 4),
        lag=timedelta(seconds=_number(environ, "HOOKSTATION_LAKE_LAG_S", 60)),
        keep_bodies=_choice(environ, "HOOKSTATION_LAKE_BODIES", "keep", "omit") == "keep",
        retention_days=_number(environ, "HOOKSTATION_RETENTION_DAYS", 30),
        dead_retention_days=_number(environ, "HOOKSTATION_DEAD_RETENTION_DAYS", 90),
        folder=folder,
        python=_text(environ, "PYSPARK_PYTHON") or sys.executable,
        encryption_keys=",".join(_keys(environ)),
    )


def encryption_keys() -> list[str]:
    """Return the broker's encryption keys, on an executor."""
    return _split(get(ENCRYPTION_KEYS))


def get(name: str) -> str:
    """Return a variable; empty where it is absent."""
    return os.environ.get(name, "")


def export(name: str, value: str) -> None:
    """Set a variable for this process and its children."""
    os.environ[name] = value


def _text(environ: Mapping[str, str], name: str) -> str:
    if name in environ:
        return environ[name].strip()
    path = environ.get(f"{name}_FILE")
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidSetting(f"{name}_FILE={path!r} cannot be read: {error.strerror}.") from None


def _keys(environ: Mapping[str, str]) -> list[str]:
    """Return the configured keys, then those derived from SECRET_KEY, as the broker does."""
    secrets = [_text(environ, "SECRET_KEY"), *_split(_text(environ, "SECRET_KEY_FALLBACKS"))]
    return _split(_text(environ, ENCRYPTION_KEYS)) + [
        encryption.derived_key(text) for text in secrets if text
    ]


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _lake_folder(text: str) -> Path | None:
    """Parse a folder. A URL is refused, since some library would create a folder of that name."""
    refused = f"{LAKE}={text!r} cannot be used:"
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
        raise InvalidSetting(
            f"{refused} addresses are not supported, expected a folder such as /srv/lake."
        )
    if text and not text.startswith("/"):
        raise InvalidSetting(f"{refused} expected an absolute folder, such as /srv/lake.")
    if special := set(text) & set("*?[]{}\\"):
        raise InvalidSetting(
            f"{refused} {min(special)} means more than itself to Spark, leave it out."
        )
    return Path(text) if text else None


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = _text(environ, name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InvalidSetting(f"{name}={text!r} cannot be used: expected a whole number above 0.")
    return int(text)


def _choice(environ: Mapping[str, str], name: str, *choices: str) -> str:
    """Return one of ``choices``; by default the first."""
    text = _text(environ, name) or choices[0]
    if text not in choices:
        raise InvalidSetting(f"{name}={text!r} cannot be used: expected {' or '.join(choices)}.")
    return text
