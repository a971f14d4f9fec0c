"""Architecture rules that no linter checks: import direction, and sizes."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKER = ("broker_site", "channels_app", "delivery")
CODE = (*BROKER, "pipeline", "bench", "clients")
CLIENT = ROOT / "clients" / "python"
MAX_MODULE = 800
MAX_FUNCTION = 60
MAX_NAMESAKES = 2
FORCED_CLASS_NAMES = {"Command"}
"""What Django looks for in each module of a command."""
MADE_HERE = {"data", "mutants", "node_modules", "staticfiles", "__pycache__"}
"""Folders without source files, like all hidden folders except those below."""
HIDDEN_SOURCES = {".ci", ".github"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files(folder: Path = ROOT) -> Iterator[Path]:
    """Yield all files of the project."""
    for path in sorted(folder.iterdir()):
        is_hidden = path.name.startswith(".") and path.name not in HIDDEN_SOURCES
        if path.is_file():
            yield path
        elif path.is_dir() and not is_hidden and path.name not in MADE_HERE:
            yield from files(path)


def sources(*folders: str) -> list[str]:
    """Return the path of each Python module below the folders, migrations excepted."""
    return [
        name
        for name in (path.relative_to(ROOT).as_posix() for path in files() if path.suffix == ".py")
        if name.startswith(tuple(f"{folder}/" for folder in folders)) or name in folders
        if "/migrations/" not in name
    ]


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    """Yield the qualified name and the node of each function below a node."""
    for node in ast.iter_child_nodes(tree):
        name = f"{owner}.{node.name}" if isinstance(node, Function | ast.ClassDef) else owner
        if isinstance(node, Function):
            yield name.lstrip("."), node
        yield from functions(node, name)


@pytest.mark.slow("reads every module")
@pytest.mark.parametrize(
    ("folder", "config"),
    [(ROOT, ROOT / "pyproject.toml"), (CLIENT / "src", CLIENT / "pyproject.toml")],
    ids=["broker", "client"],
)
def test_imports_point_one_way(folder: Path, config: Path) -> None:
    # In a separate process, since it silences every logger.
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache", "--no-logo", "--config", config],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_the_picture_of_the_rooms_is_that_of_the_code() -> None:
    drawn = subprocess.run(
        [sys.executable, ROOT / "tools" / "architecture"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert drawn == (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8"), (
        "tools/architecture > docs/images/architecture.svg"
    )


def test_modules_have_one_subject() -> None:
    long = {}
    for name in sources(*CODE):
        length = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        if length > MAX_MODULE:
            long[name] = length

    assert long == {}


@pytest.mark.slow("parses every module")
def test_functions_stay_short() -> None:
    long = {
        f"{name}:{function_name}": (function.end_lineno or 0) - function.lineno + 1
        for name in sources(*CODE)
        for function_name, function in functions(ast.parse((ROOT / name).read_bytes()))
    }

    assert {name: length for name, length in long.items() if length > MAX_FUNCTION} == {}


def constants(body: list[ast.stmt]) -> Iterator[str]:
    """Yield each upper-case name that these statements assign, once for each assignment."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and name.id.isupper():
                    yield name.id


def test_constants_that_are_assigned_twice_are_found() -> None:
    body = ast.parse("A, B = 1, 2\nif X:\n    B = 3\nA: int = 4\nc = 5\nc = 6").body
    assert Counter(constants(body)) == {"A": 2, "B": 1}


@pytest.mark.slow("parses every module")
def test_constants_are_assigned_once() -> None:
    twice = [
        f"{name}: {constant}"
        for name in sources(*CODE)
        for constant, count in Counter(
            constants(ast.parse((ROOT / name).read_bytes()).body)
        ).items()
        if count > 1
    ]

    assert twice == []


@pytest.mark.slow("parses every module")
def test_class_names_say_which_one_it_is() -> None:
    modules = Counter(
        node.name
        for name in sources(*BROKER, "pipeline")
        for node in ast.parse((ROOT / name).read_bytes()).body
        if isinstance(node, ast.ClassDef)
    )
    shared = {name for name, count in modules.items() if count > MAX_NAMESAKES}

    assert shared <= FORCED_CLASS_NAMES


def out_of_order(body: list[ast.stmt]) -> Iterator[str]:
    """Yield each name that stands too low: a constant, or what is public.

    What the import of the module runs has to stand above: a constant that is computed from a
    function stands below it, and a private function that makes a class or a constant above these.
    """
    defined: set[str] = set()
    needed = needed_at_import(body)
    is_private_above = False
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            defined.add(node.name)
            if is_private_above and not node.name.startswith("_"):
                yield node.name
            is_private_above |= (
                isinstance(node, Function) and node.name.startswith("_") and node.name not in needed
            )
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            assigned = {name.id for name in ast.walk(node) if is_name(name, ast.Store)}
            if names_read(node) & defined:
                defined |= assigned
            elif defined:
                yield from sorted(assigned)


def needed_at_import(body: list[ast.stmt]) -> set[str]:
    """Return the names that a module reads while it is imported, in functions that it calls too."""
    functions = {node.name: node for node in body if isinstance(node, Function)}
    found: set[str] = set()
    new = {name for node in body for name in names_read(node)}
    while new:
        found |= new
        inside = [
            statement for name in new & functions.keys() for statement in functions[name].body
        ]
        new = {name for node in inside for name in names_read(node)} - found
    return found


def names_read(node: ast.AST) -> set[str]:
    """Return the names that a statement reads, without those in bodies of functions."""
    if is_name(node, ast.Load):
        return {node.id}
    later: list[ast.stmt] = node.body if isinstance(node, Function) else []
    now = [child for child in ast.iter_child_nodes(node) if child not in later]
    return {name for child in now for name in names_read(child)}


def is_name(node: ast.AST, context: type[ast.expr_context]) -> TypeGuard[ast.Name]:
    """Whether the node is a name that is read or assigned."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("A = 1\ndef f(): _g()\ndef _g(): pass", []),
        ("def f(): pass\nA = 1", ["A"]),
        ("def f(): pass\nA = f()\nB: int = A", []),
        ("class C: pass\nlogger = getLogger(__name__)", ["logger"]),
        ("class C: pass\nAll = list[C]", []),
        ("def _g(): pass\ndef f(): _g()", ["f"]),
        ("def _g(): pass\nclass C:\n    a = Field(check=_g)", []),
        ("def _g(): pass\nclass C:\n    def f(self): _g()", ["C"]),
        ("def _g(): pass\ndef f(a=_g): pass", []),
        ("def _g(): pass\ndef f(): return _g()\nA = f()\ndef h(): pass", []),
        ("class _C: pass\ndef f(): pass", []),
    ],
)
def test_what_stands_too_low_is_found(source: str, names: list[str]) -> None:
    assert list(out_of_order(ast.parse(source).body)) == names


@pytest.mark.slow("parses every module")
def test_modules_read_from_the_top() -> None:
    low = [
        f"{name}: {found}"
        for name in sources(*BROKER, "pipeline")
        if not name.endswith("_pb2.py")
        for found in out_of_order(ast.parse((ROOT / name).read_bytes()).body)
    ]

    assert low == []


DATABASE = re.compile(
    r"^vendor$|sqlite|mysql|mariadb|postgres"
    r"|FORCE INDEX \(|INDEXED BY |STRAIGHT_JOIN|ON (DUPLICATE KEY|CONFLICT) ",
    re.IGNORECASE,
)


def asks_which_database(tree: ast.AST) -> Iterator[int]:
    """Yield each line that names a database or writes SQL for one of them; docstrings may."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        words = [word for _, word in ast.iter_fields(node) if isinstance(word, str)]
        if any(DATABASE.search(word) for word in words) and id(node) not in docstrings:
            yield node.lineno  # type: ignore[attr-defined]  # each node with a name has one


@pytest.mark.parametrize(
    "line",
    [
        'if connection.vendor == "oracle": pass',
        "lock = '' if database.is_mysql else ' FOR UPDATE'",
        'if settings.ENGINE.endswith("sqlite3"): pass',
        'if "MariaDB" in version: pass',
        'sql = {"mysql": A, "sqlite": B}[kind]',
        "from channels_app.database.dialects.mysql import new",
        'if url.startswith("mysql://"): pass',
        "sql = f'{table} FORCE INDEX ({index})'",
    ],
)
def test_questions_which_database_is_used_are_found(line: str) -> None:
    assert set(asks_which_database(ast.parse(line))) == {1}


@pytest.mark.slow("parses every module")
def test_only_dialects_know_which_database_is_used() -> None:
    dialects = ("channels_app/database/dialects/", "pipeline/broker/database.py")
    # The driver that MySQL's dialect uses, and the default of a setting.
    allowed = ("broker_site/server/mysql/", "pipeline/settings.py")
    asking = [
        f"{name}:{line}"
        for name in sources(*BROKER, "pipeline")
        if not name.startswith(dialects + allowed)
        for line in asks_which_database(ast.parse((ROOT / name).read_bytes()))
    ]

    assert asking == []


def test_every_type_ignore_has_a_reason() -> None:
    """The reason stands behind the marker or in a comment above it."""
    silent = []
    for name in sources(*CODE, "tests", "manage.py"):
        before = ""
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            found = re.search(r"type: ignore\[[^]]*](.*)", line)
            if found and "#" not in found[1] and not before.strip().startswith("#"):
                silent.append(f"{name}:{number}")
            before = line

    assert silent == []


def test_packages_with_code_have_docstrings() -> None:
    """The linter checks all other modules."""
    silent = []
    for name in sources(*CODE, "tests"):
        text = (ROOT / name).read_text(encoding="utf-8") if name.endswith("__init__.py") else ""
        if text and not text.startswith('"""'):
            silent.append(name)

    assert silent == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    # Written so that the pattern does not match itself.
    place = re.compile(r"(?<![\w.~}])/(?:hom[e]|roo[t]|User[s]|wor[k])/|/tmp/bas[h]_")
    found = []
    for path in files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        if match := place.search(text):
            found.append(f"{path.relative_to(ROOT)}: {match.group()}")

    assert found == []
