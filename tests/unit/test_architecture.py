"""The house holds its own rules: import direction, one door per dependency, and sizes."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from importlinter import cli

ROOT = Path(__file__).resolve().parents[2]
BROKER = ("broker_site", "channels_app", "delivery")
READS_ENVIRONMENT = {
    "manage.py",
    "broker_site/env.py",
    "broker_site/wsgi.py",
    "pipeline/settings.py",
}
LONGEST_MODULE = 300
LONGEST_MODELS = 400
LONGEST_FUNCTION = 60
MADE_HERE = {"data", "staticfiles", "__pycache__"}
"""Folders that hold nothing of the project, like all hidden ones but the next."""
HIDDEN_SOURCES = {".ci", ".github"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(folder: Path = ROOT) -> Iterator[Path]:
    """All files of the project."""
    for path in sorted(folder.iterdir()):
        is_hidden = path.name.startswith(".") and path.name not in HIDDEN_SOURCES
        if path.is_file():
            yield path
        elif path.is_dir() and not is_hidden and path.name not in MADE_HERE:
            yield from files(path)


def modules(*folders: str) -> list[tuple[str, ast.Module]]:
    """Name and syntax tree of each Python module below the folders, migrations excepted."""
    return [
        (name, parsed(name))
        for name in sources()
        if any(name == folder or name.startswith(f"{folder}/") for folder in folders)
    ]


@cache
def sources() -> list[str]:
    """The names of all Python modules, migrations excepted."""
    names = [path.relative_to(ROOT).as_posix() for path in files() if path.suffix == ".py"]
    return [name for name in names if "/migrations/" not in name]


@cache
def parsed(name: str) -> ast.Module:
    """The syntax tree of a module; parsing all of them takes seconds, so it is done once."""
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    """Qualified name and node of each function below a node."""
    for node in ast.iter_child_nodes(tree):
        name = f"{owner}.{node.name}" if isinstance(node, Function | ast.ClassDef) else owner
        if isinstance(node, Function):
            yield name.lstrip("."), node
        yield from functions(node, name)


def test_imports_point_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.lint_imports(
        config_filename=str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True
    )

    assert status == cli.EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_the_broker_and_the_pipeline_never_import_each_other() -> None:
    broker = [
        f"{name}:{line} imports {what}"
        for name, tree in modules(*BROKER, "manage.py")
        for line, what in imported(tree)
        if what.split(".")[0] == "pipeline"
    ]
    pipeline = [
        f"{name}:{line} imports {what}"
        for name, tree in modules("pipeline")
        for line, what in imported(tree)
        if what.split(".")[0] in BROKER
    ]

    assert broker + pipeline == []


def test_the_environment_has_one_reader() -> None:
    readers = {
        name
        for name, tree in modules(*BROKER, "pipeline", "manage.py")
        for node in ast.walk(tree)
        if reads_environment(node)
    }

    assert readers - READS_ENVIRONMENT == set()


def reads_environment(node: ast.AST) -> bool:
    """Whether the node is ``os.environ``, ``os.getenv`` or their import by name."""
    readers = {"environ", "environb", "getenv"}
    if isinstance(node, ast.Attribute):
        return node.attr in readers and isinstance(node.value, ast.Name) and node.value.id == "os"
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in readers for alias in node.names)
    return False


def test_imports_stand_at_the_top() -> None:
    hidden = [
        f"{name}:{line} imports {what} in {function_name}"
        for name, tree in modules(*BROKER, "pipeline", "manage.py", "bench", "tests")
        for function_name, function in functions(tree)
        # Django allows an app's signals to be connected only when all models are there.
        if not (name.endswith("/apps.py") and function.name == "ready")
        for line, what in imported(function)
    ]

    assert hidden == []


def test_modules_stay_short() -> None:
    long = {}
    for name, _ in modules(*BROKER, "pipeline", "bench"):
        length = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        if length > (LONGEST_MODELS if "/models" in name else LONGEST_MODULE):
            long[name] = length

    assert long == {}


def test_functions_stay_short() -> None:
    long = {
        f"{name}:{function_name}": (function.end_lineno or 0) - function.lineno + 1
        for name, tree in modules(*BROKER, "pipeline", "bench")
        for function_name, function in functions(tree)
    }

    assert {name: length for name, length in long.items() if length > LONGEST_FUNCTION} == {}


def test_whoever_overrules_the_type_checker_says_why() -> None:
    """Behind it, or in a comment over it."""
    silent = []
    for name, _ in modules(*BROKER, "pipeline", "bench", "tests", "manage.py"):
        before = ""
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            found = re.search(r"type: ignore\[[^]]*](.*)", line)
            if found and "#" not in found[1] and not before.strip().startswith("#"):
                silent.append(f"{name}:{number}")
            before = line

    assert silent == []


def test_every_module_says_what_it_is_in_its_first_line() -> None:
    silent = [
        name
        for name, tree in modules(*BROKER, "pipeline", "bench", "tests", "manage.py")
        if not ast.get_docstring(tree) and tree.body
    ]

    assert silent == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    # Written so that the pattern does not find itself.
    place = re.compile(r"(?<![\w.~}])/(?:hom[e]|roo[t]|User[s]|wor[k])/|/tmp/bas[h]_")
    found = []
    for path in files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        if match := place.search(text):
            found.append(f"{path.relative_to(ROOT)}: {match.group()}")

    assert found == []
