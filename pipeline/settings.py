"""The pipeline's choices: the only reader of its environment (docs/settings.md has each variable).

The broker reads the same variables in a program of its own; the two share no code on purpose.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pipeline.rules import sealed

BASE_DIR = Path(__file__).resolve().parent.parent
LAKE = "HOOKSTATION_LAKE"
BULK = "HOOKSTATION_LAKE_READ_URL"
"""The variable by which Spark's workers know where bulk reads go."""
KEYS = "HOOKSTATION_ENCRYPTION_KEYS"
"""The variable by which they know the broker's encryption keys."""


COMMAND = "HOOKSTATION_COMMAND"
"""How people started the program, where the command `hookstation` or `manage.py` did."""
CHECKOUT = "python manage.py"


def command(environ: Mapping[str, str] = os.environ) -> str:
    """What people type in front of a command of the broker."""
    return environ.get(COMMAND) or CHECKOUT


def own_command(environ: Mapping[str, str] = os.environ) -> str:
    """What people type in front of a job."""
    name = command(environ)
    return "python -m pipeline" if name == CHECKOUT else f"{name} pipeline"


class BadSetting(Exception):
    """A variable cannot be used; the message names it and says what would be accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run needs to know about its installation."""

    database_url: str
    bulk_url: str
    """Where bulk reads go: a replica, or the database itself."""
    lake: Path | None
    """None: nothing is archived, and reports know what the database still has."""
    master: str
    """Spark's master: ``local[2]``, ``spark://host:7077``, ``k8s://...``."""
    memory: str
    """Of the driver's Java heap, as Spark writes it: ``1g``."""
    partitions: int
    """Connections that a job reads the database with at once."""
    lag: timedelta
    """How long a row may wait between its key being made and its commit."""
    keep_bodies: bool
    retention_days: int
    dead_retention_days: int
    folder: Path
    """Of files made at run time."""
    python: str
    """The interpreter of Spark's Python workers."""
    encryption_keys: str = ""
    """The broker's, comma-separated: they open answers that it sealed. Empty: no such answer is
    opened."""


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """The environment as typed values. Raises BadSetting naming the variable."""
    folder = Path(_text(environ, "HOOKSTATION_DATA_DIR") or BASE_DIR / "data")
    database_url = _text(environ, "DATABASE_URL") or f"sqlite:///{folder / 'hookstation.sqlite3'}"
    return Settings(
        database_url=database_url,
        bulk_url=_text(environ, BULK) or database_url,
        lake=_lake(_text(environ, LAKE)),
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


def keys() -> list[str]:
    """The broker's encryption keys, on an executor."""
    return _words(get(KEYS))


def get(name: str) -> str:
    """A variable as it is; empty where it is absent."""
    return os.environ.get(name, "")


def export(name: str, value: str) -> None:
    """Set a variable for this process and for those that it starts."""
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
        raise BadSetting(f"{name}_FILE={path!r} cannot be read: {error.strerror}.") from None


def _keys(environ: Mapping[str, str]) -> list[str]:
    """As the broker has them: those that are set, then those derived from SECRET_KEY."""
    secrets = [_text(environ, "SECRET_KEY"), *_words(_text(environ, "SECRET_KEY_FALLBACKS"))]
    return _words(_text(environ, KEYS)) + [sealed.derived(text) for text in secrets if text]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _lake(text: str) -> Path | None:
    """A folder. Some library would make one of that name for whatever else the text means."""
    refused = f"{LAKE}={text!r} cannot be used:"
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
        raise BadSetting(
            f"{refused} addresses are not supported, expected a folder such as /srv/lake."
        )
    if text and not text.startswith("/"):
        raise BadSetting(f"{refused} expected an absolute folder, such as /srv/lake.")
    if found := set(text) & set("*?[]{}\\"):
        raise BadSetting(f"{refused} {min(found)} means more than itself to Spark, leave it out.")
    return Path(text) if text else None


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = _text(environ, name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise BadSetting(f"{name}={text!r} cannot be used: expected a whole number above 0.")
    return int(text)


def _choice(environ: Mapping[str, str], name: str, *choices: str) -> str:
    """One of ``choices``; the first where nothing is said."""
    text = _text(environ, name) or choices[0]
    if text not in choices:
        raise BadSetting(f"{name}={text!r} cannot be used: expected {' or '.join(choices)}.")
    return text
