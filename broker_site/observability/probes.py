"""Serve /livez, /readyz and /metrics, for load balancers, operators and Prometheus.

These pages need no login, so they show nothing secret: states, counts and ages, no names or
addresses. Metrics reveal the volume of business, so /metrics requires a local caller or a token.
"""

import hmac
from collections.abc import Callable
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db import Error as DatabaseFailure
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import split_domain_port
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client.exposition import choose_encoder

from broker_site.observability import backlog, scrape
from channels_app.conf import conf
from channels_app.core.program import typed
from channels_app.ingest.storage import disks, probe
from channels_app.registry import data_encryption
from delivery.processes import registration

MIB = 1024**2
FORWARDED = (
    *("HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PROTO"),
    *("HTTP_X_REAL_IP", "HTTP_FORWARDED", "HTTP_VIA"),
)
"""Headers that a proxy adds; with one of them the request is not local."""
NOT_FOR_ALL = (
    "Metrics are for this machine alone. To scrape from elsewhere set "
    "HOOKSTATION_METRICS_TOKEN and send it as 'Authorization: Bearer ...'.\n"
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    ok: bool
    detail: str
    """One sentence."""
    hint: str = ""
    """What to do, if something is to be done."""


@require_safe
@never_cache
def livez(request: HttpRequest) -> HttpResponse:
    """Whether this process responds; checks nothing else, so that it works without a database."""
    return JsonResponse({"status": "alive"})


@require_safe
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """Whether messages are accepted and delivered: 200, or 503 with the checks that failed.

    ``?exclude=pumps&exclude=oldest_due`` leaves checks out: a load balancer for the publish
    endpoint should keep sending while deliveries are late, because accepting still works. The
    checks ``storage`` and ``disk`` tell whether it does.
    """
    excluded = request.GET.getlist("exclude")
    results = {name: result for name, result in _run() if name not in excluded}
    ready = all(check.ok for check in results.values())
    body = {
        "status": "ready" if ready else "not ready",
        "checks": {name: asdict(check) for name, check in results.items()},
    }
    response = JsonResponse(body, status=200 if ready else 503)
    # Django's own flag, which the stubs lack; otherwise each probe is logged as an ERROR.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Metrics of all processes and of the database, in the format that the scraper requests."""
    if not _may_scrape(request):
        return HttpResponse(NOT_FOR_ALL, status=401, headers={"WWW-Authenticate": "Bearer"})
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(scrape.registry()), content_type=content_type)


def database() -> Check:
    """Check that the database responds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()
    return Check(True, "The database answers.")


def unapplied_migrations() -> list[str]:
    """Names of the migrations that are in the code but not applied."""
    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


def storage() -> Check:
    """Check that a row can be written."""
    try:
        probe.check()
    except DatabaseFailure:
        return Check(
            False,
            "The database answers, but no row can be written: no message is accepted.",
            typed("Check whether it is read-only, locked or full: `manage.py doctor`."),
        )
    return Check(True, "A row can be written.")


def disk() -> Check:
    """Check that there is disk space for messages."""
    rooms = disks.rooms()
    reserve = conf().disk_reserve_bytes // MIB
    free = ", ".join(f"{room.free // MIB} MiB in {room.folder}" for room in rooms)
    if not any(room.is_short for room in rooms):
        return Check(True, f"Free: {free}.")
    return Check(
        False,
        f"Free: {free}. Below {reserve} MiB no message is accepted.",
        "Free space, or keep messages for a shorter time (HOOKSTATION_RETENTION_DAYS).",
    )


def keys() -> Check:
    """Check that this process can encrypt, and decrypt what others encrypt."""
    if not data_encryption.refusal():
        return Check(True, "This process has the current encryption key.")
    return Check(
        False,
        "This process lacks the current encryption key: it accepts nothing to be encrypted.",
        typed(
            "`manage.py doctor` names the key. Add it to HOOKSTATION_ENCRYPTION_KEYS and restart."
        ),
    )


def pumps() -> Check:
    """Check that there are pumps that deliver."""
    living = registration.living()
    adrift = [slot for slot in living if registration.is_adrift(slot.clock_offset_ms / 1000)]
    if len(adrift) < len(living):
        return Check(True, f"Pumps with a heartbeat: {len(living)}.")
    if adrift:
        return Check(
            False,
            f"Pumps with a heartbeat: {len(living)}. None claims deliveries: their hosts' clocks "
            "differ too much from the database's.",
            "Synchronise the clocks of hosts and database (HOOKSTATION_MAX_CLOCK_OFFSET_S).",
        )
    return Check(
        False,
        f"No pump had a heartbeat in the last {registration.STALE_AFTER_S:.0f} s: "
        "nothing is delivered.",
        typed("Start `manage.py broker` or `manage.py worker`, or read its log."),
    )


def oldest_due() -> Check:
    """Check that due deliveries are sent in time."""
    age_s = backlog.oldest_due_s(backlog.read())
    detail = f"The oldest due delivery that waits only for the broker is {age_s:.1f} s old."
    if age_s <= backlog.LATE_S:
        return Check(True, detail)
    return Check(
        False,
        detail,
        f"The limit is {backlog.LATE_S:.0f} s. Read the pumps' log, or give the broker more "
        "pumps (HOOKSTATION_PUMPS) or more requests in flight (HOOKSTATION_PUMP_IN_FLIGHT).",
    )


class _Migrations:
    """Check the migrations; only until they are all applied, since reading the files takes time."""

    def __init__(self) -> None:
        self._applied = False

    def __call__(self) -> Check:
        missing = [] if self._applied else unapplied_migrations()
        self._applied = not missing
        if not missing:
            return Check(True, "The tables fit the code.")
        return Check(
            False, f"{len(missing)} migrations are not applied.", typed("Run `manage.py migrate`.")
        )


CHECKS: dict[str, Callable[[], Check]] = {
    "database": database,
    "migrations": _Migrations(),
    "storage": storage,
    "disk": disk,
    "keys": keys,
    "pumps": pumps,
    "oldest_due": oldest_due,
}
"""In this order: if the database is unavailable, later checks are skipped."""


def _run() -> list[tuple[str, Check]]:
    results: list[tuple[str, Check]] = []
    away = False
    for name, check in CHECKS.items():
        if away:
            results.append((name, Check(False, "Not checked: the database does not answer.")))
            continue
        try:
            results.append((name, check()))
        except DatabaseFailure:
            # The driver's message may contain hosts and users, so it is not shown here.
            away = name == "database"
            results.append((name, _failed(name)))
    return results


def _failed(name: str) -> Check:
    if name == "database":
        return Check(
            False,
            "The database does not answer.",
            typed("Check that it runs and that DATABASE_URL is right: `manage.py doctor`."),
        )
    return Check(
        False,
        "The tables cannot be read.",
        typed("Run `manage.py migrate`; if that does not help, `manage.py doctor` says more."),
    )


def _may_scrape(request: HttpRequest) -> bool:
    """Whether the request has the token or, if none is set, comes from this machine."""
    if token := settings.ENVIRONMENT.metrics_token:
        scheme, _, given = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), token.encode())
    # With a public name there is a proxy, which may not send forwarding headers.
    if not _is_local(urlsplit(settings.PUBLIC_URL).hostname or ""):
        return False
    if any(name in request.META for name in FORWARDED) or not _is_local(_host(request)):
        return False
    return _is_local(request.META.get("REMOTE_ADDR", ""))


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _host(request: HttpRequest) -> str:
    """The requested host name: DNS rebinding could make a foreign name resolve to this machine."""
    return split_domain_port(request.META.get("HTTP_HOST", "localhost"))[0].strip("[]")
