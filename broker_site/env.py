"""Read the process environment: each variable once, typed and documented. No other module does."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from environ import Env

from channels_app.core import program
from channels_app.database import dialects

BASE_DIR = Path(__file__).resolve().parent.parent
COMMAND = "HOOKSTATION_COMMAND"
"""Variable that passes the program's name, as the user typed it, to child processes."""

MAX_BODY_BYTES = 64 * 1024**2
"""Maximum of the two body size settings. Web process, database and pump hold a whole body or batch
in memory, sometimes several copies."""
OTHERS = {
    COMMAND,
    *(f"HOOKSTATION_{name}" for name in ("URL", "GRPC_URL", "KEY", "SECRET", "RELAY_ON_COMMIT")),
    *(f"HOOKSTATION_{name}" for name in ("TEST_BODIES", "CLIENT_PYTHON", "WHEEL_PYTHON")),
}
"""Variables of the clients, of examples and of the tests, which may be set for the broker too."""


class BadEnvironment(Exception):
    """A variable is invalid; the message names it and states what is accepted."""


def _boolean(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("expected on or off")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("expected a whole number above 0")
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("expected a whole number, 0 or above")
    return number


def _body_size(text: str) -> int:
    number = _positive(text)
    if number > MAX_BODY_BYTES:
        raise ValueError(
            f"expected at most {MAX_BODY_BYTES}, store larger bodies elsewhere and publish a link"
        )
    return number


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected {' or '.join(choices)}")
        return text

    return parse


def _lake(text: str) -> str:
    """A folder that Spark and the broker interpret alike; the pipeline rejects the same values."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
        raise ValueError("addresses are not supported, expected a folder such as /srv/lake")
    if text and not text.startswith("/"):
        raise ValueError("expected an absolute folder, such as /srv/lake")
    if found := set(text) & set("*?[]{}\\"):
        raise ValueError(f"{min(found)} means more than itself to Spark, leave it out")
    return text


def _database(text: str) -> str:
    if text and urlsplit(text).scheme not in dialects.BY_SCHEME:
        raise ValueError("expected sqlite:///path or mysql://user:password@host:port/name")
    return text


def _mail(text: str) -> str:
    if text:
        try:
            Env.email_url_config(text)
        except (KeyError, ValueError, ImproperlyConfigured):
            raise ValueError("expected something like smtp+tls://user:password@host:587") from None
    return text


def _setting(
    name: str, default: Any, parse: Callable[[str], Any], help: str, *, secret: bool = False
) -> Any:
    metadata = {"name": name, "parse": parse, "help": help, "secret": secret}
    return field(default=default, metadata=metadata)


def _hook(name: str, default: Any, parse: Callable[[str], Any], help: str, **more: bool) -> Any:
    return _setting(f"HOOKSTATION_{name}", default, parse, help, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """All settings of an installation. docs/settings.md has a row for each."""

    database_url: str = _setting(
        "DATABASE_URL",
        "",
        _database,
        "sqlite:///path or mysql://user:password@host:port/name.",
        secret=True,
    )
    secret_key: str = _setting(
        "SECRET_KEY",
        "",
        str,
        "Signs sessions and cursors; at least 50 random characters.",
        secret=True,
    )
    secret_key_fallbacks: tuple[str, ...] = _setting(
        "SECRET_KEY_FALLBACKS",
        (),
        _words,
        "Former values of SECRET_KEY whose signatures stay valid.",
        secret=True,
    )
    data_dir: Path = _hook(
        "DATA_DIR", BASE_DIR / "data", Path, "Folder for files created at run time."
    )
    debug: bool = _hook(
        "DEBUG", False, _boolean, "Show tracebacks in the browser; never in production."
    )
    log_level: str = _hook("LOG_LEVEL", "INFO", str.upper, "DEBUG, INFO, WARNING or ERROR.")
    encryption_keys: tuple[str, ...] = _hook(
        "ENCRYPTION_KEYS",
        (),
        _words,
        "Keys that decrypt stored bodies and secrets; the first one encrypts.",
        secret=True,
    )

    require_body_digests: bool = _hook(
        "REQUIRE_BODY_DIGESTS", False, _boolean, "Refuse to send stored bodies without a digest."
    )

    public_url: str = _hook(
        "PUBLIC_URL",
        "http://127.0.0.1:8000",
        str,
        "URL at which people and producers reach the broker.",
    )
    allowed_hosts: tuple[str, ...] = _hook(
        "ALLOWED_HOSTS",
        ("localhost", "127.0.0.1", "[::1]"),
        _words,
        "Accepted Host headers, besides the host of PUBLIC_URL.",
    )
    trusted_proxies: int = _hook(
        "TRUSTED_PROXIES", 0, int, "Number of reverse proxies in front that add to X-Forwarded-For."
    )
    hsts_s: int = _hook(
        "HSTS_S", 365 * 86400, _not_negative, "max-age of Strict-Transport-Security; 0 omits it."
    )
    metrics_token: str = _hook(
        "METRICS_TOKEN",
        "",
        str,
        "Token that /metrics requires; without one, only this machine may read it.",
        secret=True,
    )
    web_workers: int = _hook(
        "WEB_WORKERS", 0, int, "Web processes; 0 chooses by cores and database."
    )
    web_threads: int = _hook(
        "WEB_THREADS", 0, int, "Threads of each web process; 0 chooses by database and processes."
    )
    long_polls: int = _hook(
        "LONG_POLLS", 4096, _positive, "Receive calls that may wait at once in each web process."
    )
    grpc_address: str = _hook(
        "GRPC_ADDRESS", "", str, "HOST:PORT of the gRPC server; empty: there is none."
    )
    grpc_certificate: str = _hook(
        "GRPC_CERTIFICATE", "", str, "PEM file of its certificate chain; empty: without TLS."
    )
    grpc_certificate_key: str = _hook(
        "GRPC_CERTIFICATE_KEY", "", str, "PEM file of the certificate's key."
    )
    max_body_bytes: int = _hook(
        "MAX_BODY_BYTES", 1024 * 1024, _body_size, "Largest message body; a channel may allow less."
    )
    max_batch_bytes: int = _hook(
        "MAX_BATCH_BYTES", 16 * 1024 * 1024, _body_size, "Largest request of the batch endpoint."
    )

    signup: str = _hook("SIGNUP", "invitation", _one_of("invitation", "open"), "Who may sign up.")
    email_url: str = _setting(
        "EMAIL_URL", "", _mail, "Mail server; without one, mail is written to the log.", secret=True
    )
    email_from: str = _hook("EMAIL_FROM", "hookstation@localhost", str, "Sender address of mail.")

    allowed_targets: str = _hook(
        "ALLOWED_TARGETS", "", str, "Private networks that the broker may call, as CIDR."
    )
    https_only: bool = _hook("HTTPS_ONLY", False, _boolean, "Refuse consumers with http:// URLs.")
    ca_file: str = _hook("CA_FILE", "", str, "CA certificates that verify consumers (PEM).")

    rational_delay_ms: int = _hook(
        "RATIONAL_DELAY_MS",
        2000,
        _positive,
        "Age at which the sweep handles a message that no pump fanned out.",
    )
    timeout_ms: int = _hook("DELIVERY_TIMEOUT_MS", 15000, _positive, "Timeout of one attempt.")
    connect_timeout_ms: int = _hook(
        "CONNECT_TIMEOUT_MS", 5000, _positive, "Timeout for connecting."
    )
    lease_grace_ms: int = _hook(
        "LEASE_GRACE_MS", 10000, _positive, "Time by which a lease exceeds the timeout."
    )
    max_attempts: int = _hook(
        "MAX_ATTEMPTS", 10, _positive, "Failed attempts after which a delivery is dead."
    )
    max_in_flight: int = _hook(
        "MAX_IN_FLIGHT", 64, _positive, "Most open requests to one consumer."
    )
    excerpt_bytes: int = _hook(
        "RESPONSE_EXCERPT_BYTES", 4096, _positive, "Bytes of each response that are stored."
    )
    max_response_bytes: int = _hook(
        "MAX_RESPONSE_BYTES", 262144, _positive, "Bytes of a response that are read."
    )
    breaker_failures: int = _hook(
        "BREAKER_FAILURES", 20, _positive, "Outages in a row that open a consumer's circuit."
    )
    breaker_base_ms: int = _hook(
        "BREAKER_BASE_MS", 5000, _positive, "First wait of an open circuit."
    )
    breaker_cap_ms: int = _hook(
        "BREAKER_CAP_MS", 300000, _positive, "Longest wait of an open circuit."
    )
    disable_after_days: int = _hook(
        "DISABLE_AFTER_DAYS",
        5,
        _positive,
        "Days without a success after which a failing consumer is disabled.",
    )

    pumps: int = _hook("PUMPS", 1, _positive, "Pumps (delivery processes) of one worker cluster.")
    pump_in_flight: int = _hook("PUMP_IN_FLIGHT", 512, _positive, "Most open requests of one pump.")
    pump_body_bytes: int = _hook(
        "PUMP_BODY_BYTES",
        64 * 1024 * 1024,
        _positive,
        "Total bytes of the bodies in one pump's open requests.",
    )
    pump_lifetime_s: int = _hook(
        "PUMP_LIFETIME_S", 3600, _positive, "Seconds until a new process replaces a pump."
    )
    poll_ms: int = _hook(
        "POLL_MS", 500, _positive, "Milliseconds between a pump's polls when no wake-up comes."
    )
    max_clock_offset_s: int = _hook(
        "MAX_CLOCK_OFFSET_S",
        60,
        _not_negative,
        "Clock offset from the database above which a host claims no deliveries; 0: no limit.",
    )
    wake: bool = _hook("WAKE", True, _boolean, "Send a wake-up datagram after each commit.")
    wake_bind: str = _hook("WAKE_BIND", "127.0.0.1", str, "Address on which wake-ups arrive.")
    grace_s: int = _hook("SHUTDOWN_GRACE_S", 20, _positive, "Seconds that stopping may take.")

    channel_waiting_messages: int = _hook(
        "CHANNEL_WAITING_MESSAGES",
        10_000_000,
        _not_negative,
        "Unfinished messages in a channel without a limit of its own; 0: no limit.",
    )
    channel_waiting_bytes: int = _hook(
        "CHANNEL_WAITING_BYTES",
        50 * 1024**3,
        _not_negative,
        "Total bytes of their bodies; 0: no limit.",
    )
    team_waiting_messages: int = _hook(
        "TEAM_WAITING_MESSAGES",
        10_000_000,
        _not_negative,
        "Unfinished messages of a team without a limit of its own; 0: no limit.",
    )
    team_waiting_bytes: int = _hook(
        "TEAM_WAITING_BYTES",
        50 * 1024**3,
        _not_negative,
        "Total bytes of their bodies; 0: no limit.",
    )
    disk_reserve_bytes: int = _hook(
        "DISK_RESERVE_BYTES",
        256 * 1024**2,
        _not_negative,
        "Free disk space below which messages are refused; 0: never.",
    )
    max_future_days: int = _hook(
        "MAX_FUTURE_DAYS", 3660, _positive, "Days ahead that a message may be scheduled."
    )
    idempotency_window_s: int = _hook(
        "IDEMPOTENCY_WINDOW_S",
        86400,
        _positive,
        "Seconds for which a channel remembers idempotency keys.",
    )
    retention_days: int = _hook(
        "RETENTION_DAYS", 30, _positive, "Days for which finished messages are kept."
    )
    dead_retention_days: int = _hook(
        "DEAD_RETENTION_DAYS", 90, _positive, "Days for which dead letters are kept."
    )
    hot_key_waiting: int = _hook(
        "HOT_KEY_WAITING",
        1000,
        _not_negative,
        "Deliveries behind a head that make an ordering key hot; 0: no limit.",
    )
    hot_key_after_s: int = _hook(
        "HOT_KEY_AFTER_S",
        1800,
        _not_negative,
        "Age of a blocked head that makes its key hot; 0: no limit.",
    )
    reconcile_interval_s: int = _hook(
        "RECONCILE_INTERVAL_S",
        900,
        _not_negative,
        "Seconds between reconciliations of the last hours; 0: never.",
    )
    reconcile_recent_s: int = _hook(
        "RECONCILE_RECENT_S", 7200, _positive, "Seconds that these reconciliations look back."
    )
    reconcile_full_interval_s: int = _hook(
        "RECONCILE_FULL_INTERVAL_S",
        86400,
        _not_negative,
        "Seconds between reconciliations of everything; 0: never.",
    )
    reconcile_grace_s: int = _hook(
        "RECONCILE_GRACE_S", 300, _positive, "Seconds after which unfinished work counts as late."
    )
    lake: str = _hook("LAKE", "", _lake, "Folder of the archive; without one, nothing is archived.")
    lake_bodies: str = _hook(
        "LAKE_BODIES", "keep", _one_of("keep", "omit"), "Whether bodies are archived."
    )
    lake_read_url: str = _hook(
        "LAKE_READ_URL", "", str, "Replica for the pipeline's bulk reads.", secret=True
    )
    lake_connections: int = _hook(
        "LAKE_CONNECTIONS", 4, _positive, "Database connections of a job that reads."
    )
    lake_lag_s: int = _hook(
        "LAKE_LAG_S", 60, _positive, "Age from which jobs read rows; longer than any request takes."
    )
    spark_master: str = _hook("SPARK_MASTER", "local[*]", str, "Where the pipeline's jobs run.")
    spark_memory: str = _hook("SPARK_MEMORY", "1g", str, "Java heap of the pipeline's driver.")
    pipeline_python: str = _hook(
        "PIPELINE_PYTHON", "", str, "Interpreter that has the pipeline's packages."
    )
    metrics_dir: str = _setting(
        "PROMETHEUS_MULTIPROC_DIR", "", str, "Folder in which processes share metrics."
    )
    failpoint: str = _hook(
        "FAILPOINT", "", str, "File that names a step at which a process kills itself; for tests."
    )


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Parse the environment; ``NAME_FILE`` is read if ``NAME`` is not set.

    Raises BadEnvironment that names the invalid variable.
    """
    values: dict[str, Any] = {}
    for setting in fields(Environment):
        name = setting.metadata["name"]
        text = _text(environ, name)
        if text is None:
            continue
        try:
            values[setting.name] = setting.metadata["parse"](text)
        except ValueError as error:
            shown = "" if setting.metadata["secret"] else f"={text!r}"
            raise BadEnvironment(f"{name}{shown} cannot be used: {error}.") from None
    return Environment(**values)


def unknown(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Each ``HOOKSTATION_`` variable that is no setting, with the most similar setting, or ""."""
    known = {setting.metadata["name"] for setting in fields(Environment)}
    found = {
        name
        for name in environ
        if name.startswith("HOOKSTATION_") and name.removesuffix("_FILE") not in known | OTHERS
    }
    return {name: next(iter(get_close_matches(name, known, 1)), "") for name in sorted(found)}


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
    for setting in fields(Environment):
        os.environ.pop(setting.metadata["name"], None)
        os.environ.pop(f"{setting.metadata['name']}_FILE", None)
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
