"""Configuration follows the same rules for each resource, through API, console, portal and files.

What only one resource or one page does is tested beside it.
"""

import json
import re
from dataclasses import dataclass
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Model
from django.urls import reverse
from jsonschema import Draft202012Validator

from channels_app.models import (
    AuditEntry,
    Channel,
    ConfigVersion,
    Consumer,
    EventType,
    Producer,
    Schedule,
    Team,
)
from channels_app.serializers.schedules import CONTENT
from tests.support import console, people
from tests.support.api import Api
from tests.support.calling import document
from tests.support.factories import ApiKeyFactory, ChannelFactory, TeamFactory

pytestmark = pytest.mark.django_db

HUGE = 10**40
TOO_MUCH = ("\ud800", "x" * 70_000, json.loads("[" * 40 + "]" * 40))
WRONG: tuple[Any, ...] = (
    *(None, True, 1.5, -1, HUGE, "", "nonsense", "x" * 3000, {}, {"x": 1}),
    *([], [1], [HUGE], ["v1a", "v1a"], {"per_second": -1}, {"per_second": 5, "x": 1}),
)
"""Values of which the OpenAPI document forbids most for each field."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of configured row, named as in the audit log."""

    kind: str
    model: type[Model]
    url: str
    names: dict[str, str]
    """What names a row, in a file and in a form."""
    body: dict[str, Any]
    """A valid body; also valid in a file and in a form."""
    wrong: tuple[tuple[str, object], ...]
    """Values that the OpenAPI document allows and further rules refuse.

    One for each rule: tests/unit has more values.
    """
    text: str = "description"
    """A field with text."""
    can_delete: bool = False

    def __str__(self) -> str:
        return self.kind


IN_CHANNEL = {"channel": "orders"}
CHANNEL = Resource(
    "channel",
    Channel,
    "channels/orders",
    {"slug": "orders"},
    {"retention_days": 7},
    (
        *(("description", value) for value in ("nul\x00", "half \ud800")),
        ("ordering_key_path", "a..b"),
        ("max_body_bytes", 1024 * 1024 + 1),
        ("max_future_days", 3662),
        ("content_types", ["json"]),
        ("id", 1),
        ("half \ud800", 1),
    ),
)
EVENT_TYPE = Resource(
    "event_type",
    EventType,
    "channels/orders/event-types/order.created",
    {**IN_CHANNEL, "name": "order.created"},
    {"example": 7, "deprecated": True},
    (
        ("schema", {"type": "objekt"}),
        *((name, {"title": text}) for name in ("schema", "example") for text in TOO_MUCH),
        ("name", "other"),
    ),
    can_delete=True,
)
PRODUCER = Resource(
    "producer",
    Producer,
    "producers/shop",
    {"slug": "shop"},
    {"max_priority": 5},
    (("team", "nobody"), ("slug", "other")),
)
TEAM = Resource(
    "team",
    Team,
    "teams/shop",
    {"slug": "shop"},
    {"max_waiting_messages": 5},
    (("slug", "other"), ("members", ["olga"])),
    text="name",
)
CONSUMER = Resource(
    "consumer",
    Consumer,
    "channels/orders/consumers/billing",
    {**IN_CHANNEL, "client_id": "billing"},
    {"url": "http://127.0.0.1:9/hook"},
    (
        *(("url", f"http://{to}/") for to in ("10.0.0.1", "user:pass@example.com", "\ud800.com")),
        ("url", ""),
        ("team", "nobody"),
        ("event_types", ["order.**"]),
        *(("headers", value) for value in ({"Host": "x"}, {"X-A": "1", "x_a": "2"})),
        ("state", "active"),
        ("secret", "whsec_x"),
    ),
    can_delete=True,
)
SCHEDULE = Resource(
    "schedule",
    Schedule,
    "channels/orders/schedules/daily",
    {**IN_CHANNEL, "name": "daily"},
    {"cron": "0 9 * * *", "body": "x"},
    (
        *(("cron", value) for value in (None, "61 * * * *")),
        ("timezone", "Mars/Phobos"),
        ("start_at", "tomorrow"),
        # The rules for messages.
        *(("body", value) for value in (None, {"a": 1})),
        ("priority", 10),
        ("event_type", "no spaces"),
        ("headers", {"webhook-id": "x"}),
        ("ordering_key", ""),
    ),
    can_delete=True,
)
RESOURCES = (CHANNEL, EVENT_TYPE, PRODUCER, TEAM, CONSUMER, SCHEDULE)
every_resource = pytest.mark.parametrize("resource", RESOURCES, ids=str)


@pytest.fixture(autouse=True)
def _channel(request: pytest.FixtureRequest, db: None) -> None:
    if "channel" not in request.node.callspec.id:
        ChannelFactory.create(slug="orders", external=True)


@pytest.fixture
def admin() -> Api:
    return Api(ApiKeyFactory.create(admin=True))


def row_of(resource: Resource) -> dict[str, Any]:
    """Return the values of the only row."""
    return dict(resource.model._default_manager.values().get())


def entries(resource: Resource) -> list[AuditEntry]:
    """Return the entries of creating and changing, oldest first."""
    actions = [f"{resource.kind}.{done}" for done in ("create", "update")]
    return list(AuditEntry.objects.filter(action__in=actions).order_by("id"))


# -- Every interface -------------------------------------------------------------------------------


class Writer:
    """Writes a resource through one interface."""

    actor: str
    """Begins the audit log's name of who did it."""
    stale: str | None = "__all__"
    """How the interface refuses to overwrite a newer version; None if it does not compare."""

    def __init__(self, resource: Resource, tmp_path: Path) -> None:
        self.resource, self.file = resource, tmp_path / "hooks.toml"

    @property
    def row(self) -> Model | None:
        return self.resource.model._default_manager.first()

    def read(self) -> dict[str, Any]:
        """Return what tells, with a later change, which version was read."""
        return {}

    def write(self, changes: dict[str, str], read: dict[str, Any]) -> set[str]:
        """Create or change the row; return the fields that were refused."""
        raise NotImplementedError


class ApiWriter(Writer):
    """Sends PUT."""

    actor = "key:"
    stale = "stale_version"

    def __init__(self, resource: Resource, tmp_path: Path) -> None:
        super().__init__(resource, tmp_path)
        self.api = Api(ApiKeyFactory.create(admin=True))

    def read(self) -> dict[str, Any]:
        return {"If_Match": self.api.get(self.resource.url).etag}

    def write(self, changes: dict[str, str], read: dict[str, Any]) -> set[str]:
        answer = self.api.put(self.resource.url, self.resource.body | changes, **read)
        return set() if answer.status < 300 else {answer.json.get("field") or answer.json["code"]}


class FileWriter(Writer):
    """Applies a file."""

    actor = "command:"
    stale = None

    def write(self, changes: dict[str, str], read: dict[str, Any]) -> set[str]:
        values = self.resource.names | self.resource.body | changes
        lines = (f"{name} = {json.dumps(value)}" for name, value in values.items())
        self.file.write_text("\n".join((f"[[{self.resource.kind}s]]", *lines)))
        try:
            call_command("apply", str(self.file), stdout=StringIO())
        except CommandError as refused:
            return set(re.findall(r", (\w+): ", str(refused)))
        return set()


class ConsoleWriter(Writer):
    """Sends the console's form."""

    actor = "user:olga"

    def __init__(self, resource: Resource, tmp_path: Path) -> None:
        super().__init__(resource, tmp_path)
        self.client = console.operator()

    @property
    def url(self) -> str:
        if self.row is not None:
            return console.page_url(self.row)
        return reverse(f"admin:channels_app_{self.resource.model._meta.model_name}_add")

    def read(self) -> dict[str, Any]:
        return console.values_of(self.client, self.url)

    def write(self, changes: dict[str, str], read: dict[str, Any]) -> set[str]:
        values = read or self.read()
        if self.row is None:
            values |= self.resource.names | self.resource.body
            if "channel" in values:
                values["channel"] = Channel.objects.get().pk
        answer: Any = self.client.post(self.url, values | changes)
        if answer.status_code == 302 or "adminform" not in answer.context:
            return set()
        assert shows(answer, changes)
        return set(answer.context["adminform"].form.errors)


class PortalWriter(Writer):
    """Sends the portal's form."""

    actor = "user:eddy"
    new = {"producer": "producers/-/new", "consumer": "webhooks/-/new/orders"}
    page = {"producer": "producers/acme.shop", "consumer": "webhooks/orders/billing/settings"}

    def __init__(self, resource: Resource, tmp_path: Path) -> None:
        super().__init__(resource, tmp_path)
        self.client = people.person("eddy", TeamFactory.create(slug="acme"), "editor")

    def read(self) -> dict[str, Any]:
        return {"version": str(row_of(self.resource)["version"])}

    def write(self, changes: dict[str, str], read: dict[str, Any]) -> set[str]:
        place = (self.page if self.row else self.new)[self.resource.kind]
        values = {"name": "shop", "default_priority": "4"} | self.resource.names
        values |= self.resource.body | (read or (self.read() if self.row else {}))
        answer: Any = self.client.post(f"/portal/acme/{place}/", values | changes)
        if answer.status_code != 422:
            return set()
        assert shows(answer, changes)
        return set(answer.context["form"].errors)


def shows(answer: Any, changes: dict[str, str]) -> bool:
    """Return whether the input is kept in the form, apart from control characters."""
    html = answer.content.decode()
    return all(value in html for value in changes.values() if value.isprintable())


WRITERS: list[tuple[type[Writer], Resource]] = [
    *((ApiWriter, resource) for resource in RESOURCES),
    *((FileWriter, resource) for resource in RESOURCES),
    # The console's form of a team also writes its members: test_configuration.py.
    *((ConsoleWriter, resource) for resource in RESOURCES if resource is not TEAM),
    *((PortalWriter, resource) for resource in (PRODUCER, CONSUMER)),
]


@pytest.mark.trap("lost updates")
@pytest.mark.parametrize(
    ("kind", "resource"),
    WRITERS,
    ids=[f"{kind.__name__}-{resource}" for kind, resource in WRITERS],
)
def test_only_a_valid_change_of_the_current_version_is_stored_and_audited(
    kind: type[Writer], resource: Resource, tmp_path: Path
) -> None:
    writer = kind(resource, tmp_path)

    def write(text: str = "", read: dict[str, Any] | None = None) -> set[str]:
        return writer.write({resource.text: text} if text else {}, read or {})

    assert write("\x07") == {resource.text}
    assert writer.row is None
    assert write() == set()
    created, before = entries(resource), row_of(resource)
    assert [entry.action for entry in created] == [f"{resource.kind}.create"]
    assert created[0].actor.startswith(writer.actor)
    read, number = writer.read(), ConfigVersion.objects.get().number

    assert write() == set()
    assert (row_of(resource), ConfigVersion.objects.get().number) == (before, number)
    assert write("Changed") == set()
    after = row_of(resource)
    assert (after[resource.text], after["version"]) == ("Changed", before["version"] + 1)
    _, update = entries(resource)
    assert update.before == {resource.text: before[resource.text]}
    assert update.after == {resource.text: "Changed"}
    assert update.actor.startswith(writer.actor)

    assert write("\x07") == {resource.text}
    if writer.stale is not None:
        assert write("Lost", read) == {writer.stale}
    assert row_of(resource) == after
    assert len(entries(resource)) == 2


@pytest.mark.trap("another path than the registered one")
@pytest.mark.parametrize("kind", [ApiWriter, FileWriter, ConsoleWriter, PortalWriter])
def test_a_url_is_stored_as_it_is_written(kind: type[Writer], tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/x/../%2e%2e/hook//.?a=/../b"

    assert kind(CONSUMER, tmp_path).write({"url": url}, {}) == set()
    assert row_of(CONSUMER)["url"] == url


# -- The API ---------------------------------------------------------------------------------------


@pytest.mark.seed("S0-10", "S1-10", "S4-06")
@every_resource
def test_put_replaces_and_patch_changes_what_it_names(admin: Api, resource: Resource) -> None:
    url, text = resource.url, resource.text
    created = admin.put(url, resource.body)
    assert created.status == 201
    assert created.header("Location") == f"http://127.0.0.1:8000/api/v1/{url}"
    again = admin.put(url, resource.body)
    assert (again.status, again.etag) == (200, created.etag)
    assert again.json == {name: created.json[name] for name in again.json}

    changed = admin.patch(url, {text: "New"})
    moved = {text: "New", "version": again.json["version"] + 1}
    moved["updated_at"] = changed.json["updated_at"]
    assert (changed.status, changed.json) == (200, again.json | moved)
    assert admin.patch(url, {text: "New"}).etag == changed.etag
    assert admin.get(url).json == changed.json
    (listed,) = admin.get(url.rpartition("/")[0]).json["items"]
    assert listed == {name: changed.json[name] for name in listed}

    replaced = admin.put(url, resource.body)
    kept = "New" if resource is TEAM else ""
    assert (replaced.status, replaced.json[text]) == (200, kept)


@pytest.mark.trap("lost updates")
@every_resource
def test_a_stale_version_is_412_and_changes_nothing(admin: Api, resource: Resource) -> None:
    url = resource.url
    assert admin.put(url, resource.body, If_Match="*").status == 412
    assert not resource.model._default_manager.exists()
    etag = admin.put(url, resource.body, If_None_Match="*").etag
    current = admin.patch(url, {resource.text: "Moved on"}, If_Match=f'"77", {etag}').etag
    assert admin.patch(url, {resource.text: "Moved on"}, If_Match="*").status == 200
    before = row_of(resource)
    methods = ("PUT", "PATCH", "DELETE")[: 3 if resource.can_delete else 2]
    body = resource.body | {resource.text: "Lost update"}
    for method in methods:
        for name, tag in (("If_Match", etag), ("If_None_Match", "*")):
            answer = admin.call(method, url, body, **{name: tag})
            assert (answer.status, answer.json["code"]) == (412, "stale_version")
            assert answer.is_problem
        for name in ("If_Match", "If_None_Match"):
            answer = admin.call(method, url, body, **{name: "3"})
            assert (answer.status, answer.json["field"]) == (422, name.replace("_", "-"))
    assert row_of(resource) == before
    if resource.can_delete:
        assert admin.delete(url, If_Match=current).status == 204


@every_resource
def test_what_does_not_exist_is_404(admin: Api, resource: Resource) -> None:
    if resource.can_delete:
        admin.put(resource.url, resource.body)
        assert admin.delete(resource.url).status == 204
        last = AuditEntry.objects.latest("id").action
        assert last in {f"{resource.kind}.delete", f"{resource.kind}.retire"}
    assert admin.get(resource.url.rpartition("/")[0]).json["items"] == []
    for method in ("GET", "PATCH", "DELETE")[: 3 if resource.can_delete else 2]:
        answer = admin.call(method, resource.url, {})
        assert (answer.status, answer.json["code"]) == (404, f"unknown_{resource.kind}")


def settings_of(resource: Resource) -> dict[str, tuple[dict[str, Any], Draft202012Validator]]:
    """Return the fields that the OpenAPI document has, apart from a message's content."""
    components = document()["components"]
    fields = components["schemas"][f"{resource.model.__name__}Settings"]["properties"]
    return {
        name: (schema, Draft202012Validator(schema | {"components": components}))
        for name, schema in fields.items()
        if name not in CONTENT
    }


def undocumented(resource: Resource) -> list[dict[str, object]]:
    """Return values that the OpenAPI document does not allow, for all fields at once."""
    found: dict[str, list[object]] = {"nonsense": [1]}
    for name, (schema, allowed) in settings_of(resource).items():
        values = list(WRONG)
        values += [schema["minimum"] - 1, schema["maximum"] + 1] if "maximum" in schema else []
        found[name] = [value for value in values if not allowed.is_valid(value)]
    rounds = zip_longest(*found.values(), fillvalue=...)
    return [
        {name: value for name, value in zip(found, values, strict=True) if value is not ...}
        for values in rounds
    ]


@every_resource
def test_documented_limits_are_accepted(admin: Api, resource: Resource) -> None:
    for limit in ("minimum", "maximum"):
        fields = settings_of(resource).items()
        values = {name: schema[limit] for name, (schema, _) in fields if "maximum" in schema}
        values.pop("every_ms", None)  # only without cron
        assert admin.put(resource.url, resource.body | values).status < 300, values


@every_resource
def test_bad_fields_are_named_and_nothing_is_stored(admin: Api, resource: Resource) -> None:
    fields = settings_of(resource)
    for name, value in resource.wrong:
        assert name not in fields or fields[name][1].is_valid(value), "the document refuses it"
    bad = [*undocumented(resource), *({name: value} for name, value in resource.wrong)]
    for values in bad:
        answer = admin.put(resource.url, resource.body | values)
        assert (answer.status, answer.json["code"]) == (422, "invalid_fields"), values
        faults = {fault["field"] for fault in answer.json.get("errors", [answer.json])}
        assert faults == {name.encode("utf-8", "backslashreplace").decode() for name in values}
        assert answer.is_problem
    assert not resource.model._default_manager.exists()
    admin.put(resource.url, resource.body)
    before = row_of(resource)
    for values in bad[::5]:
        assert admin.patch(resource.url, values).json["code"] == "invalid_fields", values
    assert row_of(resource) == before


@every_resource
def test_a_bad_name_is_refused(admin: Api, resource: Resource) -> None:
    for name in ("-orders", "or ders", "orders%2Fx", "x" * 129, "%00", "ordérs", "."):
        answer = admin.put(f"{resource.url.rpartition('/')[0]}/{name}", resource.body)
        assert answer.status in {404, 422}, name
        assert answer.is_problem
    assert not resource.model._default_manager.exists()
