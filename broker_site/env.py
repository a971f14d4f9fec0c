"""Read the process environment: each variable once. No other module does.

An app declares the settings that it uses in its ``conf``, and this module those of the site.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from environ import Env

from channels_app.core import program
from channels_app.core.settings import (
    boolean,
    not_negative,
    one_of,
    positive,
    setting,
    variable,
    words,
)
from channels_app.database import dialects
from delivery import conf

BASE_DIR: Path = Path(__file__).resolve().parent.parent
COMMAND = "HOOKSTATION_COMMAND"
"""Variable that passes the program's name, as the user typed it, to child processes."""
OTHERS = {
    COMMAND,
    *(f"HOOKSTATION_{name}" for name in ("URL", "GRPC_URL", "KEY", "SECRET", "RELAY_ON_COMMIT")),
    *(f"HOOKSTATION_{name}" for name in ("TEST_BODIES", "CLIENT_PYTHON", "WHEEL_PYTHON")),
}
"""Variables of the clients, of examples and of the tests, which may be set for the broker too."""


class BadEnvironment(Exception):
    """A variable is invalid; the message names it and states what is accepted."""


def _database(text: str) -> str:
    if text and urlsplit(text).scheme not in dialects.BY_SCHEME:
        raise ValueError(f"expected {dialects.ADDRESSES}")
    return text


def _mail(text: str) -> str:
    if text:
        try:
            Env.email_url_config(text)
        except (KeyError, ValueError, ImproperlyConfigured):
            raise ValueError("expected something like smtp+tls://user:password@host:587") from None
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(conf.Conf):
    """All settings of an installation. docs/settings.md has a row for each."""

    database_url: str = variable(
        "DATABASE_URL",
        "",
        _database,
        f"{dialects.ADDRESSES}.",
        secret=True,
    )
    secret_key: str = variable(
        "SECRET_KEY",
        "",
        str,
        "Signs sessions and cursors; at least 50 random characters.",
        secret=True,
    )
    secret_key_fallbacks: tuple[str, ...] = variable(
        "SECRET_KEY_FALLBACKS",
        (),
        words,
        "Former values of SECRET_KEY whose signatures stay valid.",
        secret=True,
    )
    data_dir: Path = setting(
        "DATA_DIR", BASE_DIR / "data", Path, "Folder for files created at run time."
    )
    debug: bool = setting(
        "DEBUG", False, boolean, "Show tracebacks in the browser; never in production."
    )
    log_level: str = setting("LOG_LEVEL", "INFO", str.upper, "DEBUG, INFO, WARNING or ERROR.")
    allowed_hosts: tuple[str, ...] = setting(
        "ALLOWED_HOSTS",
        ("localhost", "127.0.0.1", "[::1]"),
        words,
        "Accepted Host headers, besides the host of PUBLIC_URL.",
    )
    trusted_proxies: int = setting(
        "TRUSTED_PROXIES", 0, int, "Number of reverse proxies in front that add to X-Forwarded-For."
    )
    hsts_s: int = setting(
        "HSTS_S", 365 * 86400, not_negative, "max-age of Strict-Transport-Security; 0 omits it."
    )
    metrics_token: str = setting(
        "METRICS_TOKEN",
        "",
        str,
        "Token that /metrics requires; without one, only this machine may read it.",
        secret=True,
    )
    signup: str = setting("SIGNUP", "invitation", one_of("invitation", "open"), "Who may sign up.")
    email_url: str = variable(
        "EMAIL_URL", "", _mail, "Mail server; without one, mail is written to the log.", secret=True
    )
    email_from: str = setting("EMAIL_FROM", "hookstation@localhost", str, "Sender address of mail.")
    lake_bodies: str = setting(
        "LAKE_BODIES", "keep", one_of("keep", "omit"), "Whether bodies are archived."
    )
    lake_read_url: str = setting(
        "LAKE_READ_URL", "", str, "Replica for the pipeline's bulk reads.", secret=True
    )
    lake_connections: int = setting(
        "LAKE_CONNECTIONS", 4, positive, "Database connections of a job that reads."
    )
    lake_lag_s: int = setting(
        "LAKE_LAG_S", 60, positive, "Age from which jobs read rows; longer than any request takes."
    )
    spark_master: str = setting("SPARK_MASTER", "local[*]", str, "Where the pipeline's jobs run.")
    spark_memory: str = setting("SPARK_MEMORY", "1g", str, "Java heap of the pipeline's driver.")
    metrics_dir: str = variable(
        "PROMETHEUS_MULTIPROC_DIR", "", str, "Folder in which processes share metrics."
    )


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Parse the environment; ``NAME_FILE`` is read if ``NAME`` is not set.

    Raises BadEnvironment that names the invalid variable.
    """
    values: dict[str, Any] = {}
    for each in fields(Environment):
        name = each.metadata["name"]
        text = _text(environ, name)
        if text is None:
            continue
        try:
            values[each.name] = each.metadata["parse"](text)
        except ValueError as error:
            shown = "" if each.metadata["secret"] else f"={text!r}"
            raise BadEnvironment(f"{name}{shown} cannot be used: {error}.") from None
    return Environment(**values)


def unknown(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Each ``HOOKSTATION_`` variable that is no setting, with the most similar setting, or ""."""
    setting_names = {each.metadata["name"] for each in fields(Environment)}
    unknown_names = {
        name
        for name in environ
        if name.startswith("HOOKSTATION_")
        and name.removesuffix("_FILE") not in setting_names | OTHERS
    }
    return {
        name: next(iter(get_close_matches(name, setting_names, 1)), "")
        for name in sorted(unknown_names)
    }


def export(name: str, value: str) -> None:
    """Set a variable for this process and its children, unless it is set."""
    os.environ.setdefault(name, value)


def name_command(started: str) -> None:
    """Store for this process and its children by which name people started the program.

    Children are always started by the path of manage.py.
    """
    last = Path(started).name
    names = {"manage.py": program.CHECKOUT, "__main__.py": "python -m hookstation"}
    export(COMMAND, names.get(last, last))


def command() -> str:
    """Return the program's name as the user typed it, for this process or for its parent."""
    is_installed = BASE_DIR.parts[-2:] == ("hookstation", "broker")
    return os.environ.get(COMMAND) or ("hookstation" if is_installed else program.CHECKOUT)


def extend_python_path() -> None:
    """Let child processes find the packages, whatever the working directory."""
    former = os.environ.get("PYTHONPATH", "")
    if str(BASE_DIR) not in former.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BASE_DIR), former]))


def replace(values: Mapping[str, str]) -> None:
    """Replace all settings of this process and its children by ``values``."""
    for each in fields(Environment):
        os.environ.pop(each.metadata["name"], None)
        os.environ.pop(f"{each.metadata['name']}_FILE", None)
    os.environ.update(values)


def is_set(name: str) -> bool:
    """Return whether the variable is set, by the parent process or by ``export``."""
    return name in os.environ


def _text(environ: Mapping[str, str], name: str) -> str | None:
    if name in environ:
        return environ[name].strip()
    path = environ.get(f"{name}_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadEnvironment(f"{name}_FILE={path!r} cannot be read: {error.strerror}.") from None
