"""Texts name the program as the user started it, in this process and in its child processes."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_site import env
from channels_app.core import program
from channels_app.core.program import typed

ROOT = Path(__file__).resolve().parents[3]
CONSTANTS = {"help", "examples", "EXPLANATIONS", "HEADER"}
"""Texts that pass through ``typed`` where they are used, not where they are defined."""
NAMES = {"manage.py", "program.py", "env.py"}


@pytest.fixture
def installed() -> Iterator[None]:
    program.use("hookstation")
    yield
    program.use(program.CHECKOUT)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(env.COMMAND, raising=False)
    yield
    os.environ.pop(env.COMMAND, None)


TEXT = "Run `manage.py migrate`, python manage.py doctor or `python -m pipeline usage`."


def test_in_a_checkout_the_program_is_manage_py() -> None:
    assert typed(TEXT) == (
        "Run `python manage.py migrate`, python manage.py doctor or `python -m pipeline usage`."
    )
    assert typed(typed(TEXT)) == typed(TEXT)


@pytest.mark.usefixtures("installed")
def test_an_installed_program_has_its_name() -> None:
    assert typed(TEXT) == (
        "Run `hookstation migrate`, hookstation doctor or `hookstation pipeline usage`."
    )


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("started", "name"),
    [
        ("manage.py", "python manage.py"),
        ("/srv/hookstation/manage.py", "python manage.py"),
        ("/usr/local/bin/hookstation", "hookstation"),
        ("/usr/lib/python3/hookstation/__main__.py", "python -m hookstation"),
    ],
)
def test_the_program_name_is_the_started_one(started: str, name: str) -> None:
    env.name_command(started)
    assert env.command() == name


@pytest.mark.usefixtures("environment")
def test_a_child_keeps_the_name_of_its_parent() -> None:
    env.name_command("/usr/local/bin/hookstation")
    env.name_command(str(ROOT / "manage.py"))  # as child processes are started
    assert env.command() == "hookstation"


@pytest.mark.usefixtures("environment")
def test_without_a_started_name_the_location_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert env.command() == "python manage.py"
    monkeypatch.setattr(env, "BASE_DIR", Path("/usr/lib/site-packages/hookstation/broker"))
    assert env.command() == "hookstation"


def test_every_text_that_names_a_command_goes_through_typed() -> None:
    for app in ("broker_site", "channels_app", "delivery"):
        for path in (ROOT / app).rglob("*.py"):
            text = path.read_text()
            if "manage.py" in text and path.name not in NAMES:
                bare = list(_bare(ast.parse(text)))
                assert bare == [], path
    for path in (ROOT / "templates").rglob("*.html"):
        for line in path.read_text().splitlines():
            for name in ("manage.py", "python -m pipeline"):
                assert line.count(name) == line.count(f'{{{{ "{name}'), path


def _bare(node: ast.AST) -> Iterator[str]:
    """Yield texts that contain a command, are not docstrings and do not pass through ``typed``."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "typed":
        return
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(getattr(target, "id", "") in CONSTANTS for target in targets):
            return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    text = node.value if isinstance(node, ast.Constant) else None
    # The bare string is the path of the program, not a text.
    if isinstance(text, str) and "manage.py" in text and text != "manage.py":
        yield text
    for child in ast.iter_child_nodes(node):
        yield from _bare(child)
