"""Show the system page: versions, settings, the database, processes, sweeps, background tasks."""

import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import django
from django.apps import apps
from django.conf import settings
from django.core.paginator import Page, Paginator
from django.db import connection
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest

from broker_site.observability import diagnosis
from channels_app.admin import base, pages
from channels_app.core.program import typed
from channels_app.database import clock
from channels_app.database.raw import dialect
from delivery.maintenance import pipeline_runs
from delivery.models import PumpSlot, SweepRun
from delivery.processes import registration, task_queue

PINGS = 3
ROWS = 10
"""Background tasks on a page of their table."""
TASKS = ("schedule", "ormq", "success", "failure")
"""django-q2's models, each with a permission to view it."""
ERROR = (
    '<details><summary><span class="hs-label hs-bad">failed</span></summary>'
    '<pre class="hs-pre" tabindex="0">{}</pre></details>'
)


class PageTable(NamedTuple):
    """A table of the page."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    hint: str
    """Shown in place of an empty table."""
    page: "Page[Any] | None" = None
    """Which part of a longer table it shows."""
    parameter: str = ""
    """The number of that page in the URL."""


@pages.page("system", permission="delivery.view_sweeprun", template="admin/system.html")
def context(request: HttpRequest) -> dict[str, Any]:
    """Versions, findings, settings, processes, sweeps and background tasks."""
    return {
        "title": "System",
        "versions": versions(),
        "database": database(),
        "findings": diagnosis.find(),
        "settings": settings_in_force(),
        "tables": [
            *([pumps()] if request.user.has_perm("delivery.view_pumpslot") else []),
            sweeps(),
            *tasks(request),
        ],
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
    with connection.cursor() as cursor:
        cursor.execute(dialect.version_query)
        (version,) = cursor.fetchone()
        took = [_ping(cursor) for _ in range(PINGS)]
    return [
        ("Kind", connection.display_name),
        ("Version", str(version)),
        ("Place", dialect.place(place)),
        ("Answers within", f"{min(took):.2f} ms"),
        ("This host's clock", _drift()),
    ]


def settings_in_force() -> list[dict[str, str]]:
    """All settings in force, by name; of a secret only whether it is set."""
    rows = []
    for each in sorted(fields(settings.ENVIRONMENT), key=lambda each: each.metadata["name"]):
        value = getattr(settings.ENVIRONMENT, each.name)
        if each.metadata["secret"]:
            text = "set" if value else "not set"
        else:
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
        rows.append({"name": each.metadata["name"], "value": text, "help": each.metadata["help"]})
    return rows


def pumps() -> PageTable:
    """All slots of pumps, maintenance and web processes."""
    alive = {slot.pk for kind in PumpSlot.Kind.values for slot in registration.living(kind)}
    return PageTable(
        "Pumps, maintenance and web processes",
        (
            *("Slot", "State", "Heartbeat", "Started", "Cluster", "In flight", "Woken at"),
            *("Generation", "Clock"),
        ),
        [
            (
                str(slot),
                base.label("running", "good") if slot.pk in alive else base.label("ended", "bad"),
                base.instant(slot.heartbeat_at, exact=False),
                base.instant(slot.started_at, exact=False),
                base.public_id(slot.cluster),
                slot.in_flight,
                base.mono(slot.wake_address),
                slot.generation,
                f"{slot.clock_offset_ms / 1000:+.1f} s from the database's"
                if slot.clock_offset_ms
                else "agrees with the database's",
            )
            for slot in PumpSlot.objects.order_by("kind", "cluster", "ordinal")
        ],
        f"No worker has ever run here. Start one: {typed('manage.py broker')}",
    )


def sweeps() -> PageTable:
    """The last run of each sweep."""
    return PageTable(
        "Sweeps",
        ("Sweep", "State", "Last run", "Took", "Rows", "Next run", "Error"),
        [
            (
                run.name,
                base.label("failed", "bad") if run.last_error else base.label("fine", "good"),
                base.instant(run.last_started_at, exact=False),
                f"{run.last_duration_ms or 0} ms",
                run.last_count,
                base.instant(run.next_at, exact=False),
                run.last_error or base.NONE,
            )
            for run in SweepRun.objects.order_by("name")
        ],
        "No sweep has run yet; the maintenance process of the worker runs them: "
        f"{typed('manage.py broker')}",
    )


def tasks(request: HttpRequest) -> Iterator[PageTable]:
    """Schedules, queued and finished background tasks, of those that the user may view.

    Reading a row of django-q2's may unpickle it, so its pickles are not read.
    """
    may = {name for name in TASKS if request.user.has_perm(f"django_q.view_{name}")}
    if "schedule" in may:
        yield _schedules(request)
    if "ormq" in may:
        yield _queued(request)
    if may & {"success", "failure"}:
        yield _finished(request, [name == "success" for name in may & {"success", "failure"}])


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


def _drift() -> str:
    """This host's clock compared with the database's, on which every decision is based."""
    if not dialect.clock_query:
        return "the only one"
    offset = clock.offset()
    return f"{offset.seconds * 1000:+.1f} ms from the database's, ± {offset.error_s * 1000:.1f} ms"


def _schedules(request: HttpRequest) -> PageTable:
    page = _page(request, "schedules", _rows("Schedule").order_by("name"))
    return PageTable(
        "Schedules of background tasks",
        ("Name", "Calls", "Registered", "Minutes", "Next run", "Active", "Kind", "Cluster"),
        [
            (
                row.name,
                base.public_id(row.func),
                _is_registered(row.func),
                row.minutes,
                base.instant(row.next_run, exact=False),
                "yes" if row.repeats else base.label("stopped", "wait"),
                row.get_schedule_type_display(),
                row.cluster or base.NONE,
            )
            for row in page
        ],
        "The worker has never run here.",
        page,
        "schedules",
    )


def _page(request: HttpRequest, name: str, rows: QuerySet[Any]) -> "Page[Any]":
    return Paginator(rows, ROWS).get_page(request.GET.get(name))


def _rows(model: str) -> QuerySet[Any]:
    """Rows of django-q2; the model by name, because only the runtime imports django-q2."""
    rows: QuerySet[Any] = apps.get_model("django_q", model)._default_manager.all()
    return rows


def _is_registered(name: str) -> str:
    """Whether a worker calls the function."""
    return "yes" if name in task_queue.REGISTERED else base.label("no", "bad")


def _queued(request: HttpRequest) -> PageTable:
    page = _page(request, "queued", _rows("OrmQ").order_by("id"))
    named = [(row, task_queue.task_of(row.payload)) for row in page]
    return PageTable(
        "Background tasks that are queued or running",
        ("Row", "Calls", "Registered", "Cluster", "Locked until"),
        [
            (
                row.pk,
                base.public_id(name) if name else "unreadable",
                _is_registered(name),
                row.key,
                base.instant(row.lock, exact=False),
            )
            for row, name in named
        ],
        "None.",
        page,
        "queued",
    )


def _finished(request: HttpRequest, successes: list[bool]) -> PageTable:
    rows = _rows("Task").filter(success__in=successes).order_by("-stopped", "id")
    rows = rows.defer("args", "kwargs", "result").annotate(stored=Cast("result", TextField()))
    page = _page(request, "finished", rows)
    return PageTable(
        "Finished background tasks",
        ("Name", "Called", "Started", "Ended", "Cluster", "Attempts", "Result"),
        [
            (
                row.name,
                base.public_id(row.func),
                base.instant(row.started, exact=False),
                base.instant(row.stopped, exact=False),
                row.cluster or base.NONE,
                row.attempt_count,
                base.label("done", "good")
                if row.success
                else base.fill(ERROR, task_queue.text_of(row.stored or "")),
            )
            for row in page
        ],
        "None failed in the last 30 days; those that succeed are not kept.",
        page,
        "finished",
    )
