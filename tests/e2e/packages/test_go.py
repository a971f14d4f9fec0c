"""The Go client as a package: its unit tests, its imports, and the names in its guide."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import toolchains
from tests.support.toolchains import (
    GO,
    GO_ENVIRONMENT,
    GO_GRPC,
    GO_GRPC_ENVIRONMENT,
    ROOT,
    Missing,
)

GUIDE = ROOT / "docs/clients/go.md"


@pytest.fixture(autouse=True)
def _go() -> None:
    toolchains.need_or_skip("go")


def test_unit_tests_pass_and_vet_finds_nothing() -> None:
    toolchains.run(["go", "vet", "./..."], GO, GO_ENVIRONMENT)

    said = toolchains.run(
        ["go", "test", "-count=1", "-v", "-skip", "Worker", "."], GO, GO_ENVIRONMENT
    )

    assert len(re.findall(r"^--- PASS", said, re.MULTILINE)) >= 35, said


@pytest.fixture
def _modules() -> None:
    try:
        toolchains.need_go_grpc()
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.usefixtures("_modules")
def test_unit_tests_of_streams_pass_and_vet_finds_nothing() -> None:
    toolchains.run(["go", "vet", "./..."], GO_GRPC, GO_GRPC_ENVIRONMENT)

    said = toolchains.run(
        ["go", "test", "-count=1", "-v", "-skip", "TestWorker$|Streaming", "."],
        GO_GRPC,
        GO_GRPC_ENVIRONMENT,
    )

    assert len(re.findall(r"^--- PASS", said, re.MULTILINE)) >= 6, said


@pytest.mark.usefixtures("_modules")
def test_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    command = [str(ROOT / "tools/proto"), "go", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if "go: " in done.stderr and done.returncode:
        pytest.skip(f"the compiler's plug-ins cannot be downloaded: {done.stderr}")
    assert done.returncode == 0, done.stderr

    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    checked_in = GO_GRPC / "internal/hookstationpb"

    assert sorted(made) == ["hookstation.pb.go", "hookstation_grpc.pb.go"]
    for name, content in made.items():
        assert (checked_in / name).read_text() == content, f"run tools/proto: {name}"


def test_sources_are_formatted_and_need_only_the_standard_library() -> None:
    formatted = toolchains.run(["gofmt", "-l", "."], GO)
    imports = toolchains.run(
        ["go", "list", "-deps", "-f", "{{.ImportPath}}", "."], GO, GO_ENVIRONMENT
    )
    own = toolchains.run(["go", "list", "-deps", "-f", "{{.Standard}}", "."], GO, GO_ENVIRONMENT)

    assert formatted == ""
    assert own.split().count("false") == 1
    assert "hookstation.dev/client" in imports.split()
    assert "require" not in (GO / "go.mod").read_text()


def test_version_is_in_the_changelog_and_the_licence_is_there() -> None:
    (version,) = re.findall(r'^const Version = "(.+)"', (GO / "doc.go").read_text(), re.MULTILINE)

    assert f"{version}, the first release" in (GO / "CHANGELOG.md").read_text()
    assert (GO / "LICENSE").read_text() == (ROOT / "clients/python/LICENSE").read_text()


def test_guide_names_every_method_and_everything_public_is_documented() -> None:
    public = toolchains.run(["go", "doc", "-all", "Client"], GO, GO_ENVIRONMENT)
    methods = set(re.findall(r"^ *func \(c \*Client\) (\w+)\(", public, re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    exported = re.compile(
        r"^(?!//).*\n(?:func (?:\(\w+ \*?[A-Z]\w*\) )?|type )([A-Z]\w*)", re.MULTILINE
    )
    bare = [
        f"{path.name}: {name}"
        for path in [*GO.glob("*.go"), *GO_GRPC.glob("*.go")]
        if not path.stem.endswith("_test")
        for name in exported.findall(path.read_text())
    ]

    assert len(methods) > 15
    assert methods - named == set()
    assert bare == []


def test_blocks_of_guide_and_readme_compile(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(GUIDE, GO / "README.md") if "client/grpc" not in block]
    module = (
        "module block\n\ngo 1.23\n\nrequire hookstation.dev/client v0.0.0\n\n"
        f"replace hookstation.dev/client => {GO}\n"
    )

    assert len(blocks) >= 4
    vet(tmp_path, module, blocks, GO_ENVIRONMENT)


@pytest.mark.usefixtures("_modules")
def test_blocks_with_streams_compile(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(GUIDE, GO / "README.md") if "client/grpc" in block]
    own = (GO_GRPC / "go.mod").read_text().replace("=> ../", f"=> {GO}")
    own = own.replace("module hookstation.dev/client/grpc", "module block")
    (tmp_path / "go.sum").write_bytes((GO_GRPC / "go.sum").read_bytes())
    module = (
        f"{own}\nrequire hookstation.dev/client/grpc v0.0.0\n"
        f"replace hookstation.dev/client/grpc => {GO_GRPC}\n"
    )

    assert len(blocks) >= 1
    vet(tmp_path, module, blocks, {**GO_GRPC_ENVIRONMENT, "GOFLAGS": "-mod=mod"})


def vet(folder: Path, module: str, blocks: list[str], environment: dict[str, str]) -> None:
    """Compile each block as a program of one module."""
    (folder / "go.mod").write_text(module)
    for number, block in enumerate(blocks):
        (folder / f"block{number}").mkdir()
        (folder / f"block{number}" / "main.go").write_text(block)
    toolchains.run(["go", "vet", "./..."], folder, environment)


def blocks_of(*pages: Path) -> list[str]:
    """The blocks of Go in these pages."""
    return [
        block
        for page in pages
        for block in re.findall(r"```go\n(.*?)```", page.read_text(), re.DOTALL)
    ]
