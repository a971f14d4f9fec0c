"""The settings that delivery adds to those of `channels_app.conf`."""

import re
import socket
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings

from channels_app import conf as channels
from channels_app.core.settings import boolean, not_negative, positive, setting

HOST = socket.gethostname()
"""This host's name among those that share the database."""


def _lake(text: str) -> str:
    """A folder that Spark and the broker interpret alike; the pipeline rejects the same values."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
        raise ValueError("addresses are not supported, expected a folder such as /srv/lake")
    if text and not text.startswith("/"):
        raise ValueError("expected an absolute folder, such as /srv/lake")
    if special := set(text) & set("*?[]{}\\"):
        raise ValueError(f"{min(special)} means more than itself to Spark, leave it out")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf(channels.Conf):
    """Limits and intervals of delivery (docs/settings.md)."""

    web_workers: int = setting(
        "WEB_WORKERS", 0, int, "Web processes; 0 chooses by cores and database."
    )
    web_threads: int = setting(
        "WEB_THREADS", 0, int, "Threads of each web process; 0 chooses by database and processes."
    )
    long_polls: int = setting(
        "LONG_POLLS", 4096, positive, "Receive calls that may wait at once in each web process."
    )
    grpc_address: str = setting(
        "GRPC_ADDRESS", "", str, "HOST:PORT of the gRPC server; empty: there is none."
    )
    grpc_certificate: str = setting(
        "GRPC_CERTIFICATE", "", str, "PEM file of its certificate chain; empty: without TLS."
    )
    grpc_certificate_key: str = setting(
        "GRPC_CERTIFICATE_KEY", "", str, "PEM file of the certificate's key."
    )
    ca_file: str = setting("CA_FILE", "", str, "CA certificates that verify consumers (PEM).")
    rational_delay_ms: int = setting(
        "RATIONAL_DELAY_MS",
        2000,
        positive,
        "Age at which the sweep handles a message that no pump fanned out.",
    )
    connect_timeout_ms: int = setting(
        "CONNECT_TIMEOUT_MS", 5000, positive, "Timeout for connecting."
    )
    lease_grace_ms: int = setting(
        "LEASE_GRACE_MS", 10000, positive, "Time by which a lease exceeds the timeout."
    )
    excerpt_bytes: int = setting(
        "RESPONSE_EXCERPT_BYTES", 4096, positive, "Bytes of each response that are stored."
    )
    max_response_bytes: int = setting(
        "MAX_RESPONSE_BYTES", 262144, positive, "Bytes of a response that are read."
    )
    breaker_failures: int = setting(
        "BREAKER_FAILURES", 20, positive, "Outages in a row that open a consumer's circuit."
    )
    breaker_base_ms: int = setting(
        "BREAKER_BASE_MS", 5000, positive, "First wait of an open circuit."
    )
    breaker_cap_ms: int = setting(
        "BREAKER_CAP_MS", 300000, positive, "Longest wait of an open circuit."
    )
    disable_after_days: int = setting(
        "DISABLE_AFTER_DAYS",
        5,
        positive,
        "Days without a success after which a failing consumer is disabled.",
    )
    pumps: int = setting("PUMPS", 1, positive, "Pumps (delivery processes) of one worker cluster.")
    pump_in_flight: int = setting(
        "PUMP_IN_FLIGHT", 512, positive, "Most open requests of one pump."
    )
    pump_body_bytes: int = setting(
        "PUMP_BODY_BYTES",
        64 * 1024 * 1024,
        positive,
        "Total bytes of the bodies in one pump's open requests.",
    )
    pump_lifetime_s: int = setting(
        "PUMP_LIFETIME_S", 3600, positive, "Seconds until a new process replaces a pump."
    )
    poll_ms: int = setting(
        "POLL_MS", 500, positive, "Milliseconds between a pump's polls when no wake-up comes."
    )
    max_clock_offset_s: int = setting(
        "MAX_CLOCK_OFFSET_S",
        60,
        not_negative,
        "Clock offset from the database above which a host claims no deliveries; 0: no limit.",
    )
    wake: bool = setting("WAKE", True, boolean, "Send a wake-up datagram after each commit.")
    wake_bind: str = setting("WAKE_BIND", "127.0.0.1", str, "Address on which wake-ups arrive.")
    grace_s: int = setting("SHUTDOWN_GRACE_S", 20, positive, "Seconds that stopping may take.")
    hot_key_waiting: int = setting(
        "HOT_KEY_WAITING",
        1000,
        not_negative,
        "Deliveries behind a head that make an ordering key hot; 0: no limit.",
    )
    hot_key_after_s: int = setting(
        "HOT_KEY_AFTER_S",
        1800,
        not_negative,
        "Age of a blocked head that makes its key hot; 0: no limit.",
    )
    reconcile_interval_s: int = setting(
        "RECONCILE_INTERVAL_S",
        900,
        not_negative,
        "Seconds between reconciliations of the last hours; 0: never.",
    )
    reconcile_recent_s: int = setting(
        "RECONCILE_RECENT_S", 7200, positive, "Seconds that these reconciliations look back."
    )
    reconcile_full_interval_s: int = setting(
        "RECONCILE_FULL_INTERVAL_S",
        86400,
        not_negative,
        "Seconds between reconciliations of everything; 0: never.",
    )
    reconcile_grace_s: int = setting(
        "RECONCILE_GRACE_S", 300, positive, "Seconds after which unfinished work counts as late."
    )
    lake: str = setting(
        "LAKE", "", _lake, "Folder of the archive; without one, nothing is archived."
    )
    pipeline_python: str = setting(
        "PIPELINE_PYTHON", "", str, "Interpreter that has the pipeline's packages."
    )

    @property
    def hot_key_after(self) -> timedelta:
        """Age of a blocked head that makes its key hot; zero: never."""
        return timedelta(seconds=self.hot_key_after_s)

    @property
    def user_agent(self) -> str:
        """The name by which consumers know the broker."""
        return f"Hookstation/{settings.VERSION}"


def conf() -> Conf:
    """This process's settings."""
    environment: Conf = settings.ENVIRONMENT
    return environment
