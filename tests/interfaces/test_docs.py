"""The documentation matches the code: all that exists is documented, and the reverse."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import get_commands
from django.test import Client
from prometheus_client import REGISTRY

from broker_site import commandline
from broker_site.env import Environment
from channels_app.core import recurrence
from channels_app.core.backoff import PRESETS
from channels_app.core.errors import KeyUnavailable
from channels_app.core.keys import SCOPES
from channels_app.ingest import publication
from channels_app.models import Consumer, Message, Schedule
from channels_app.serializers.api_keys import KeySerializer, OverlapSerializer
from channels_app.serializers.channels import ChannelSerializer
from channels_app.serializers.consumers import ConsumerSerializer
from channels_app.serializers.event_types import EventTypeSerializer
from channels_app.serializers.producers import ProducerSerializer
from channels_app.serializers.schedules import ScheduleSerializer
from channels_app.serializers.teams import TeamSerializer
from delivery.api import bodies
from delivery.core import signing
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.core.outcome import Outcome
from delivery.pull import calls
from delivery.replay.filters import FILTER
from tests.support.routes import routes

CODE_AT = {
    **dict.fromkeys(
        ("Invalid", "Forbidden", "NotFound", "Conflict", "PreconditionFailed", "Unauthenticated"), 0
    ),
    **dict.fromkeys(("Malformed", "LengthRequired", "TooLarge", "UnsupportedMediaType"), 0),
    **dict.fromkeys(("RateLimited", "OverQuota", "StorageFull", "Unavailable"), 0),
    **dict.fromkeys(("document", "answer", "_problem"), 1),
}
"""Position of the code among the arguments of calls that raise a problem."""
RAISES = re.compile(rf"\b(?:{'|'.join(CODE_AT)})\(")
FRAMEWORKS_OWN = {"method_not_allowed"}

DOCS = Path(settings.BASE_DIR) / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", page("settings.md"), re.MULTILINE))
    for setting in fields(Environment):
        name = setting.metadata["name"]
        assert name in rows, f"{name} is not in docs/settings.md"
        default = setting.default
        if isinstance(default, bool):
            default = "on" if default else "off"
        if isinstance(default, tuple):
            default = ",".join(default)
        if isinstance(default, int | str) and default != "":
            assert f"`{default}`" == rows[name], f"the default of {name} is {default}"
    names = {setting.metadata["name"] for setting in fields(Environment)}
    assert set(rows) == names, "docs/settings.md names a setting that does not exist"


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([state.value for state in DeliveryState], id="delivery states"),
        pytest.param([reason.value for reason in Reason], id="reasons"),
        pytest.param([outcome.value for outcome in Outcome], id="outcomes"),
        pytest.param(list(Message.State.values), id="message states"),
        pytest.param(list(Consumer.State.values), id="consumer states"),
        pytest.param(list(Schedule.State.values), id="schedule states"),
    ],
)
def test_every_state_is_documented(values: list[str]) -> None:
    text = page("states.md")
    missing = [value for value in values if f"`{value}`" not in text]
    assert not missing


@pytest.mark.django_db
def test_every_metric_is_documented() -> None:
    counted = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in REGISTRY.collect()
        if metric.name.startswith("hookstation_")
    }
    # Metrics read from the database at each scrape are in no registry.
    scrape = Client().get("/metrics").content.decode()
    found = re.findall(r"^# TYPE (hookstation_\w+) gauge", scrape, re.MULTILINE)
    read = {name for name in found if not name.endswith("_created")}
    assert counted
    assert read
    rows = re.findall(r"^\| `(hookstation_\w+)` \|", page("operating.md"), re.MULTILINE)
    assert set(rows) == counted | read


@pytest.mark.seed("S3-44", "S4-12")
def test_every_documented_guarantee_has_a_test() -> None:
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| (.*?) \|$", page("facets.md"), re.MULTILINE)
    named = [re.fullmatch(r"`(\S+)::(\w+)`", row) for row in rows if row not in ("Test", "---")]
    assert len(named) > 10
    for found in named:
        assert found is not None
        source = (DOCS.parent / found[1]).read_text(encoding="utf-8")
        assert re.search(rf"^(def |class )?{found[2]}\b", source, re.MULTILINE), found[0]


def test_every_command_is_documented() -> None:
    text = page("commands.md")
    own = ("broker_site", "channels_app", "delivery")
    ours = {name for name, app in get_commands().items() if app in own}
    grouped = {name: said for group in commandline.GROUPS.values() for name, said in group.items()}

    assert ours - grouped.keys() == set()
    rows = re.findall(r"^\| \[`manage\.py (\w+)`\]\(\S+\) \| (.*) \|$", text, re.MULTILINE)
    assert dict(rows) == grouped


def test_every_method_is_documented_with_its_scopes() -> None:
    rows = re.findall(r"^\| (?:`(/\S+)`)? ?\| ([A-Z, ]+) \| (.*?) \|", page("api.md"), re.MULTILINE)
    documented: dict[tuple[str, str], set[str]] = {}
    route = ""
    for named, methods, scopes in rows:
        route = named or route
        for method in methods.split(", "):
            documented[route, method] = set(re.findall(r"`(\w+)`", scopes) or [scopes])
    actual = {
        (route, method): {"any"} if set(scopes) == set(SCOPES) else set(scopes)
        for route, view in _routes().items()
        for method, scopes in view.scopes.items()
    }
    assert documented == actual


def test_every_problem_code_is_documented_and_used() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", page("api.md"), re.MULTILINE)
    documented = {code for code, _ in rows}
    assert len(documented) == len(rows), "a code has two rows"
    used = set(_codes()) | FRAMEWORKS_OWN | {KeyUnavailable("").code}
    assert sorted(used) == sorted(documented)


@pytest.mark.parametrize(
    ("section", "names"),
    [
        pytest.param("## Channels", ChannelSerializer.settings(), id="channel"),
        pytest.param("### Event types", EventTypeSerializer.settings(), id="event type"),
        pytest.param("## Schedules", ScheduleSerializer.settings(), id="schedule"),
        pytest.param("## Schedules", recurrence.RESULTS, id="firing"),
        pytest.param("## Consumers", ConsumerSerializer.settings(), id="consumer"),
        pytest.param("## Consumers", OverlapSerializer().fields, id="secret"),
        pytest.param("## Teams", TeamSerializer.settings(), id="team"),
        pytest.param("## Producers", ProducerSerializer.settings(), id="producer"),
        pytest.param("### Keys\n", KeySerializer.settings(), id="key"),
        pytest.param("### Keys\n", OverlapSerializer().fields, id="key rotation"),
        pytest.param("### Keys and scopes", SCOPES, id="scopes"),
        pytest.param("## Publish", publication._HEADER_OF.values(), id="publish headers"),
        pytest.param("### Publish many", publication.ITEM_FIELDS, id="batch item"),
        pytest.param("## Messages", bodies.RESCHEDULE.fields, id="reschedule"),
        pytest.param("## Pull consumers", calls.RECEIVE.fields, id="receive"),
        pytest.param("## Pull consumers", bodies.ACK.fields, id="ack"),
        pytest.param("## Pull consumers", bodies.NACK.fields, id="nack"),
        pytest.param("## Pull consumers", bodies.EXTEND.fields, id="extend"),
        pytest.param("## Pull consumers", bodies.RELEASE.fields, id="release"),
        pytest.param("## Replays", bodies.REPLAY.fields, id="replay"),
        pytest.param("## Replays", [f"filter.{name}" for name in FILTER.fields], id="filter"),
        pytest.param("### Backfill", bodies.BACKFILL.fields, id="backfill"),
        pytest.param("### Retries", [f'"{name}"' for name in PRESETS], id="retry presets"),
    ],
)
def test_every_field_is_documented(section: str, names: Any) -> None:
    depth = section.split()[0]
    rest = page("api.md").partition(f"\n{section}")[2]
    text = re.split(rf"^#{{2,{len(depth)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    known = set(re.findall(r"`([^`]+)`", prose))
    known |= {name.partition(".")[0] for name in known}
    assert not [name for name in names if name not in known]


def test_every_header_of_a_delivery_is_documented() -> None:
    sent = signing.build(
        signing.Envelope(
            message_id="msg_1",
            timestamp=1,
            signature="v1,",
            content_type="text/plain",
            channel="orders",
            consumer="billing",
            event_type="order.created",
            priority=4,
            attempt=1,
            max_attempts=10,
            accepted_at=datetime(2026, 1, 1, tzinfo=UTC),
            user_agent="Hookstation/0",
            ordering_key="customer-1",
            replay=True,
            test=True,
        )
    )
    text = page("api.md").partition("## What a consumer receives")[2].partition("\n### ")[0]
    known = set(re.findall(r"`([\w-]+)`", text))
    assert not [name for name, _ in sent if name not in known]


def _routes() -> dict[str, Any]:
    """Return views under /api/v1 by path as documented: ``/channels/{channel}``."""
    found: dict[str, Any] = {}
    for path, pattern in routes("/api/v1/"):
        view: Any = pattern.callback
        route = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path.removeprefix("/api/v1"))
        found.setdefault(route, view.view_class)
    return found


def _codes() -> Iterator[str]:
    """Yield every error code in the source."""
    for app in ("broker_site", "channels_app", "delivery"):
        for path in (Path(settings.BASE_DIR) / app).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if not RAISES.search(source):
                continue  # parsing takes long
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call):
                    yield from _codes_of(node)


def _codes_of(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = call.func.id if isinstance(call.func, ast.Name) else name
    if name not in CODE_AT:
        return
    given = [*call.args[CODE_AT[name] : CODE_AT[name] + 1]]
    given += [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    for value in given:
        # Unrelated calls have these names too; their arguments are no error codes.
        if isinstance(value, ast.Constant) and re.fullmatch(r"[a-z_]+", str(value.value)):
            yield str(value.value)
