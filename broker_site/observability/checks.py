"""Check settings and databases at start, before they lose messages or fail."""

import os
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from broker_site import env
from channels_app.conf import INSTALLATION, MAX_TIMEOUT_MS
from channels_app.core.encryption import Keyring
from channels_app.core.networks import parse_networks
from channels_app.core.program import typed
from channels_app.database import dialects

MIN_SECRET = 50
MIN_LEASE_GRACE_MS = 2000
"""Time to record the response of an attempt that ended at the timeout, before the lease ends:
commits may wait for locks, and a worker that was suspended must notice it."""


@register(INSTALLATION, Tags.security)
def secret_key(**kwargs: Any) -> list[CheckMessage]:
    """Check that SECRET_KEY is set and long enough."""
    try:
        key = settings.SECRET_KEY
    except ImproperlyConfigured:
        key = ""
    if len(key) >= MIN_SECRET:
        return []
    state = f"has {len(key)} characters" if key else "is not set"
    return [
        Error(
            f"SECRET_KEY {state}; at least {MIN_SECRET} are needed.",
            hint="It protects sessions, cursors and, without HOOKSTATION_ENCRYPTION_KEYS, stored "
            "bodies. Generate one: python3 -c 'import secrets; print(secrets.token_urlsafe(50))'",
            id="hookstation.E001",
        )
    ]


@register(INSTALLATION)
def misspelt(**kwargs: Any) -> list[CheckMessage]:
    """Check that each HOOKSTATION_ variable is a setting."""
    return [
        Warning(
            f"{name} is not a setting and has no effect.",
            hint=f"Did you mean {like}?" if like else "docs/settings.md lists all settings.",
            id="hookstation.W004",
        )
        for name, like in env.unknown().items()
    ]


@register(INSTALLATION, Tags.security)
def encryption_keys(**kwargs: Any) -> list[CheckMessage]:
    """Check that HOOKSTATION_ENCRYPTION_KEYS is valid."""
    texts = settings.ENVIRONMENT.encryption_keys
    problem = _problem(lambda: Keyring.from_texts(list(texts))) if texts else ""
    if not problem:
        return []
    return [
        Error(
            f"HOOKSTATION_ENCRYPTION_KEYS cannot be used: {problem}",
            hint=typed(
                "Comma-separated keys: the first one encrypts, all of them decrypt. "
                "`manage.py generate_encryption_key` generates one."
            ),
            id="hookstation.E002",
        )
    ]


@register(INSTALLATION)
def allowed_targets(**kwargs: Any) -> list[CheckMessage]:
    """Check that HOOKSTATION_ALLOWED_TARGETS lists networks."""
    problem = _problem(lambda: parse_networks(settings.ENVIRONMENT.allowed_targets))
    if not problem:
        return []
    return [
        Error(
            f"HOOKSTATION_ALLOWED_TARGETS cannot be used: {problem}",
            hint="Comma-separated networks in CIDR notation, such as 10.1.0.0/16,127.0.0.0/8; "
            "empty allows public addresses only.",
            id="hookstation.E003",
        )
    ]


@register(INSTALLATION)
def public_url(**kwargs: Any) -> list[CheckMessage]:
    """Check that HOOKSTATION_PUBLIC_URL is a site's URL without a path."""
    if not _problem(lambda: _check_site(settings.ENVIRONMENT.public_url)):
        return []
    return [
        Error(
            f"HOOKSTATION_PUBLIC_URL {settings.ENVIRONMENT.public_url!r} is not a site's URL.",
            hint="Set scheme, host and optionally a port: https://hooks.example.com",
            id="hookstation.E004",
        )
    ]


@register(INSTALLATION, Tags.security)
def grpc_without_tls(**kwargs: Any) -> list[CheckMessage]:
    """Check that keys and messages do not leave this machine unencrypted over gRPC."""
    address, has_tls = settings.ENVIRONMENT.grpc_address, settings.ENVIRONMENT.grpc_certificate
    host = address.rpartition(":")[0].strip("[]")
    if not address or has_tls or host in {"", "localhost", "::1"} or host.startswith("127."):
        return []
    return [
        Warning(
            f"The gRPC server on {address} does not encrypt: keys can be read on their way.",
            hint="Set HOOKSTATION_GRPC_CERTIFICATE and HOOKSTATION_GRPC_CERTIFICATE_KEY, or let a "
            "proxy in front end TLS.",
            id="hookstation.W005",
        )
    ]


@register(INSTALLATION)
def times(**kwargs: Any) -> list[CheckMessage]:
    """Check that timeouts and leases fit together."""
    chosen = settings.ENVIRONMENT
    errors: list[CheckMessage] = []
    if chosen.lease_grace_ms < MIN_LEASE_GRACE_MS:
        errors.append(
            Error(
                f"HOOKSTATION_LEASE_GRACE_MS is {chosen.lease_grace_ms}: a lease may end before "
                "the response is recorded, and the message is then sent twice.",
                hint=f"Set at least {MIN_LEASE_GRACE_MS}; the default is 10000.",
                id="hookstation.E005",
            )
        )
    if chosen.timeout_ms > MAX_TIMEOUT_MS or chosen.connect_timeout_ms > chosen.timeout_ms:
        errors.append(
            Error(
                f"HOOKSTATION_DELIVERY_TIMEOUT_MS={chosen.timeout_ms} and "
                f"HOOKSTATION_CONNECT_TIMEOUT_MS={chosen.connect_timeout_ms} conflict.",
                hint=f"The delivery timeout must be at most {MAX_TIMEOUT_MS}, and the connect "
                "timeout at most the delivery timeout.",
                id="hookstation.E006",
            )
        )
    return errors


@register(INSTALLATION)
def ca_file(**kwargs: Any) -> list[CheckMessage]:
    """Check that HOOKSTATION_CA_FILE is readable."""
    path = settings.ENVIRONMENT.ca_file
    if not path or os.access(path, os.R_OK):
        return []
    return [
        Error(
            f"HOOKSTATION_CA_FILE {path!r} cannot be read: deliveries to https URLs would fail.",
            hint="Name a readable PEM file, or leave it empty to use the system's certificates.",
            id="hookstation.E007",
        )
    ]


@register(INSTALLATION)
def debug(**kwargs: Any) -> list[CheckMessage]:
    """Check that DEBUG is off."""
    if not settings.DEBUG:
        return []
    return [
        Warning(
            "HOOKSTATION_DEBUG is on: error pages show settings and code to everyone.",
            hint="Leave it unset in production.",
            id="hookstation.W001",
        )
    ]


@register(INSTALLATION)
def sign_up(**kwargs: Any) -> list[CheckMessage]:
    """Check that mail is configured for open sign-up, which requires verified addresses."""
    chosen = settings.ENVIRONMENT
    if chosen.signup != "open" or chosen.email_url:
        return []
    return [
        Warning(
            "HOOKSTATION_SIGNUP is open and EMAIL_URL is not set: new users wait for an e-mail "
            "that is only written to the log.",
            hint="Set EMAIL_URL, such as smtp+tls://user:password@host:587.",
            id="hookstation.W003",
        )
    ]


@register(Tags.database)
def database(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the database is supported: durable, with SKIP LOCKED."""
    chosen = [connections[alias] for alias in databases or ()]
    return [
        message for connection in chosen for message in dialects.of(connection).check(connection)
    ]


def _problem(work: Callable[[], object]) -> str:
    """The message of the ValueError that ``work`` raises; '' if it raises none."""
    try:
        work()
    except ValueError as error:
        return str(error)
    return ""


def _check_site(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("no site")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("more than a site")
    parts.port  # noqa: B018 - raises ValueError for an invalid port
