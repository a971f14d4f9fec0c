"""Documentation that cannot rot: what exists is written down, and what is written down exists."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import get_commands
from django.urls import URLPattern, URLResolver, get_resolver
from prometheus_client import REGISTRY

from broker_site.env import Environment
from channels_app.models import Consumer, Message
from delivery.rules.lifecycle import DeliveryState, Reason
from delivery.rules.outcome import Outcome

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
    ],
)
def test_every_state_is_documented(values: list[str]) -> None:
    text = page("states.md")
    missing = [value for value in values if f"`{value}`" not in text]
    assert not missing


def test_every_metric_is_documented() -> None:
    text = page("operating.md")
    names = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in REGISTRY.collect()
        if metric.name.startswith("hookstation_")
    }
    assert names
    missing = [name for name in names if f"`{name}`" not in text]
    assert not missing


def test_every_route_is_documented() -> None:
    text = page("api.md")
    missing = [route for route in _routes() if f"`{route}`" not in text]
    assert not missing


def test_every_command_is_documented() -> None:
    text = page("commands.md")
    ours = [name for name, app in get_commands().items() if app in ("channels_app", "delivery")]
    missing = [name for name in ours if f"manage.py {name}" not in text]
    assert not missing


def _routes() -> set[str]:
    """Paths under /api/v1 as the documentation writes them: ``/channels/{channel}``."""
    found: set[str] = set()

    def walk(patterns: list[URLPattern | URLResolver], prefix: str) -> None:
        for pattern in patterns:
            path = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                walk(pattern.url_patterns, path)
            elif path.startswith("api/v1/"):
                found.add("/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path[len("api/v1/") :]))

    walk(get_resolver().url_patterns, "")
    return found
