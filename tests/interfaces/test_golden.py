"""Public interfaces equal a recorded copy, so that every change of them is deliberate.

A rename or a new column changes one file in tests/golden, which belongs to the same commit.
``make golden`` records the current state.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib import admin
from django.core.management import get_commands, load_command_class
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from prometheus_client import REGISTRY

from broker_site.env import Environment
from channels_app.admin import pages
from channels_app.models import ApiKey
from tests.interfaces.conftest import Same
from tests.support import console, people, world
from tests.support.calling import document
from tests.support.factories import ApiKeyFactory, TeamFactory, bearer
from tests.support.routes import routes

OURS = ("broker_site", "channels_app", "delivery")


def lines(found: Iterator[str]) -> str:
    """Sort the lines, so that the order of declarations does not matter."""
    return "".join(f"{line}\n" for line in sorted(found))


def test_openapi_document(same: Same) -> None:
    same("openapi.json", json.dumps(document(), indent=1, sort_keys=True, default=str) + "\n")


def test_command_help(same: Same, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ours = sorted((name, str(app)) for name, app in get_commands().items() if app in OURS)
    ours.remove(("migrate", "broker_site"))  # its options are Django's
    parsers = [load_command_class(app, name).create_parser("manage.py", name) for name, app in ours]

    same("commands.txt", "\n".join(parser.format_help() for parser in parsers))


def test_urls(same: Same) -> None:
    found = (f"{path}  {pattern.name or '-'}" for path, pattern in routes())

    same("urls.txt", lines(found))


@pytest.mark.django_db
def test_metrics(same: Same) -> None:
    labels = re.compile(r'(\w+)="')
    kinds: dict[str, tuple[str, set[str]]] = {}
    for line in Client().get("/metrics").content.decode().splitlines():
        if declared := re.match(r"# TYPE (hookstation_\w+) (\w+)", line):
            kinds[declared[1]] = declared[2], set()
        elif sample := re.match(r"(hookstation_\w+?)(?:_bucket|_sum|_count)?(?:{(.*)})? ", line):
            kinds.get(sample[1], ("", set()))[1].update(labels.findall(sample[2] or ""))
    declared_labels = {
        metric.name + ("_total" if metric.type == "counter" else ""): collector._labelnames
        for collector in REGISTRY._collector_to_names
        for metric in getattr(collector, "describe", list)()
        if hasattr(collector, "_labelnames")
    }

    same(
        "metrics.txt",
        lines(
            f"{name} {kind} {','.join(sorted(found | set(declared_labels.get(name, ()))))}".strip()
            for name, (kind, found) in kinds.items()
            if not name.endswith("_created")
        ),
    )


def test_settings(same: Same) -> None:
    def described() -> Iterator[str]:
        for setting in fields(Environment):
            default = setting.default
            shown = f"<folder>/{default.name}" if isinstance(default, Path) else repr(default)
            yield f"{setting.metadata['name']} = {shown}"

    same("settings.txt", lines(described()))


@pytest.mark.mysql
@pytest.mark.django_db
def test_database_schema(same: Same) -> None:
    """Only our own tables: those of Django and other packages may change."""
    tables = sorted(
        model._meta.db_table
        for app in apps.get_app_configs()
        if app.name in OURS
        for model in app.get_models()
    )
    describe = _sqlite_table if connection.vendor == "sqlite" else _mysql_table

    same(f"schema.{connection.vendor}.txt", "\n".join(describe(table) for table in tables))


def _sqlite_table(table: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sql FROM sqlite_master WHERE tbl_name = %s AND sql IS NOT NULL"
            " ORDER BY type DESC, name",
            [table],
        )
        return "".join(f"{sql.replace(', ', ',' + chr(10) + '  ')}\n" for (sql,) in cursor)


def _mysql_table(table: str) -> str:
    """Describe a table from the information schema: SHOW CREATE TABLE differs between versions."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, column_type, is_nullable, column_default, collation_name, extra"
            " FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s"
            " ORDER BY ordinal_position",
            [table],
        )
        columns = [" ".join(str(part) for part in row if part != "") for row in cursor]
        cursor.execute(
            "SELECT index_name, non_unique, GROUP_CONCAT(column_name ORDER BY seq_in_index)"
            " FROM information_schema.statistics WHERE table_schema = DATABASE()"
            " AND table_name = %s GROUP BY index_name, non_unique ORDER BY index_name",
            [table],
        )
        indexes = [f"{'index' if row[1] else 'unique'} {row[0]} ({row[2]})" for row in cursor]
        cursor.execute(
            "SELECT constraint_name, column_name, referenced_table_name"
            " FROM information_schema.key_column_usage WHERE table_schema = DATABASE()"
            " AND table_name = %s AND referenced_table_name IS NOT NULL ORDER BY constraint_name",
            [table],
        )
        keys = [f"foreign key {row[0]} ({row[1]}) to {row[2]}" for row in cursor]
    return "".join(f"{line}\n" for line in [table, *(f"  {x}" for x in columns + indexes + keys)])


@pytest.mark.slow("opens every page twice")
@pytest.mark.skipif(connection.vendor != "sqlite", reason="a server is asked for its settings too")
@pytest.mark.django_db
def test_query_counts_of_each_page(same: Same) -> None:
    """A page that starts to query once for each of its rows shows up here."""
    console.fill()
    team = TeamFactory.create(slug="acme")
    made = world.make(team)
    key = ApiKeyFactory.create(scopes=["admin"])
    owner, operator = people.person("olive", team, "owner"), console.operator()

    pages = [*_console(), *_portal(made), *_api(made)]
    visitors = {"admin": operator, "portal": owner, "api": Client()}

    same("queries.txt", lines(_counted(pages, visitors, key)))


def _counted(
    pages: list[tuple[str, str]], visitors: dict[str, Client], key: ApiKey
) -> Iterator[str]:
    """Count the second request of each page: the first one fills the caches of the process."""
    for name, address in pages:
        client = visitors[address.split("/")[1]]
        client.get(address, HTTP_AUTHORIZATION=bearer(key))
        with CaptureQueriesContext(connection) as asked:
            answer = client.get(address, HTTP_AUTHORIZATION=bearer(key))
        yield f"{name}  {answer.status_code}  {len(asked)}"


def _console() -> Iterator[tuple[str, str]]:
    yield "/admin/", reverse("admin:index")
    for name in pages.PAGES:
        yield f"/admin/{name}/", reverse(f"admin:{name}")
    for model in admin.site._registry:
        label = model._meta.label_lower
        yield f"/admin/ list of {label}", console.list_url(model)
        if row := model._default_manager.order_by("-pk").first():
            yield f"/admin/ {label}", console.page_url(row)


def _portal(made: world.World) -> Iterator[tuple[str, str]]:
    known = {**made.parameters, "team": "acme", "delivery": made.parameters["delivery_id"]}
    for path, view in people.team_routes():
        names = re.findall(r"<\w+:(\w+)>", path)
        if hasattr(view, "get") and all(name in known for name in names):
            yield path, re.sub(r"<\w+:(\w+)>", lambda found: known[found[1]], path)


def _api(made: world.World) -> Iterator[tuple[str, str]]:
    for path, operations in document()["paths"].items():
        if "get" in operations:
            yield f"GET {path}", path.format(**made.parameters)
