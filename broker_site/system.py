"""Show the system page: versions, settings, the database, processes and the last sweeps."""

import platform
import time
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.db import connection
from django.http import HttpRequest
from django.urls import reverse

from broker_site import diagnosis
from channels_app.admin import pages
from channels_app.database import clock
from delivery.maintenance import pipeline_runs
from delivery.models import PumpSlot, SweepRun
from delivery.processes import registration

PINGS = 3


@pages.page("system", permission="delivery.view_sweeprun", template="admin/system.html")
def context(request: HttpRequest) -> dict[str, Any]:
    """Versions, findings, settings, processes and sweeps."""
    return {
        "title": "System",
        "versions": versions(),
        "database": database(),
        "findings": diagnosis.find(),
        "settings": settings_in_force(),
        "pumps": pumps(),
        "sweeps": sweeps(),
        "schedules": schedules(),
        "pipeline": pipeline_facts(),
        "runs": pipeline_runs.latest().values(),
    }


def versions() -> list[tuple[str, str]]:
    """Versions of the main components."""
    return [
        ("Hookstation", settings.VERSION),
        ("Python", platform.python_version()),
        ("Django", django.get_version()),
        ("Host", f"{platform.node()}, {platform.system()} {platform.release()}"),
    ]


def database() -> list[tuple[str, str]]:
    """The database without credentials, and its response time."""
    place = settings.DATABASES["default"]
    where = f"{place.get('HOST') or '127.0.0.1'}:{place.get('PORT') or 3306}/{place['NAME']}"
    with connection.cursor() as cursor:
        is_server = connection.vendor == "mysql"
        cursor.execute("SELECT VERSION()" if is_server else "SELECT sqlite_version()")
        (version,) = cursor.fetchone()
        took = [_ping(cursor) for _ in range(PINGS)]
    return [
        ("Kind", connection.display_name),
        ("Version", str(version)),
        ("Place", where if is_server else str(place["NAME"])),
        ("Answers within", f"{min(took):.2f} ms"),
        ("This host's clock", _drift()),
    ]


def _drift() -> str:
    """This host's clock compared with the database's, on which every decision is based."""
    if connection.vendor != "mysql":
        return "the only one"
    found = clock.offset()
    return f"{found.seconds * 1000:+.1f} ms from the database's, ± {found.error_s * 1000:.1f} ms"


def settings_in_force() -> list[dict[str, str]]:
    """All settings in force; of a secret only whether it is set."""
    found = []
    for each in fields(settings.ENVIRONMENT):
        value = getattr(settings.ENVIRONMENT, each.name)
        if each.metadata["secret"]:
            text = "set" if value else "not set"
        else:
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
        found.append({"name": each.metadata["name"], "value": text, "help": each.metadata["help"]})
    return found


def pumps() -> list[dict[str, Any]]:
    """All slots of pumps and maintenance processes, with their last heartbeat."""
    alive = {slot.pk for kind in PumpSlot.Kind.values for slot in registration.living(kind)}
    return [
        {"name": str(slot), "is_well": slot.pk in alive, "at": slot.heartbeat_at}
        for slot in PumpSlot.objects.order_by("kind", "cluster", "ordinal")
    ]


def sweeps() -> list[dict[str, Any]]:
    """The last run of each sweep."""
    return [
        {
            "name": run.name,
            "link": reverse("admin:delivery_sweeprun_change", args=[run.pk]),
            "is_well": not run.last_error,
            "error": run.last_error,
            "last": run.last_started_at,
            "next": run.next_at,
            "took": f"{run.last_duration_ms or 0} ms",
            "count": run.last_count,
        }
        for run in SweepRun.objects.order_by("name")
    ]


def schedules() -> list[dict[str, Any]]:
    """django-q2's schedules; the model by name, because only the runtime imports django-q2."""
    rows: Iterable[Any] = apps.get_model("django_q", "Schedule")._default_manager.order_by("name")
    return [{"name": row.name, "calls": row.func, "next": row.next_run} for row in rows]


def pipeline_facts() -> list[tuple[str, str]]:
    """The configuration of the data pipeline on this host."""
    environment = settings.ENVIRONMENT
    return [
        ("Lake", environment.lake or "none: nothing is archived"),
        ("Spark", "installed" if pipeline_runs.is_installed() else "not installed on this host"),
        ("Master", environment.spark_master),
        ("Python", pipeline_runs.interpreter()),
    ]


def _ping(cursor: Any) -> float:
    start = time.perf_counter()
    cursor.execute("SELECT 1")
    cursor.fetchone()
    return (time.perf_counter() - start) * 1000
