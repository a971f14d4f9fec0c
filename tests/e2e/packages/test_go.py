"""The Go client as a package: its unit tests, its imports, and the programs in its guide."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import toolchains
from tests.support.toolchains import GO, GO_GRPC, ROOT


@pytest.fixture(autouse=True)
def _go() -> None:
    toolchains.need_or_skip("go")


@pytest.mark.parametrize(
    ("folder", "need", "others", "least"),
    [
        (GO, lambda: None, "Worker", 35),
        (GO_GRPC, toolchains.need_go_grpc, "TestWorker$|Streaming", 6),
    ],
    ids=["client", "streams"],
)
def test_unit_tests_pass_and_vet_finds_nothing(
    folder: Path, need: Callable[[], None], others: str, least: int
) -> None:
    toolchains.built(need)
    toolchains.run(["go", "vet", "./..."], folder, toolchains.go_environment(folder))

    said = toolchains.go_tests(folder, "-skip", others)

    assert toolchains.passed(said, "^--- PASS") >= least, said


def test_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    toolchains.built(toolchains.need_go_grpc)
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
    listed = toolchains.run(
        ["go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}", "."],
        *(GO, toolchains.go_environment(GO)),
    )

    assert formatted == ""
    foreign = [line for line in listed.splitlines() if line.endswith(" false")]
    assert foreign == ["hookstation.dev/client false"]
    assert "require" not in (GO / "go.mod").read_text()


def of_client() -> str:
    """The ``go.mod`` of a program that uses the client."""
    return (
        "module block\n\ngo 1.23\n\nrequire hookstation.dev/client v0.0.0\n\n"
        f"replace hookstation.dev/client => {GO}\n"
    )


def of_streams() -> str:
    """The same with streams, which need the libraries of their own ``go.mod``."""
    own = (GO_GRPC / "go.mod").read_text().replace("=> ../", f"=> {GO}")
    own = own.replace("module hookstation.dev/client/grpc", "module block")
    return (
        f"{own}\nrequire hookstation.dev/client/grpc v0.0.0\n"
        f"replace hookstation.dev/client/grpc => {GO_GRPC}\n"
    )


@pytest.mark.parametrize(
    ("folder", "need", "module", "least"),
    [
        (GO, lambda: None, of_client, 4),
        (GO_GRPC, toolchains.need_go_grpc, of_streams, 1),
    ],
    ids=["client", "streams"],
)
def test_blocks_of_guide_and_readme_compile(
    folder: Path, need: Callable[[], None], module: Callable[[], str], least: int, tmp_path: Path
) -> None:
    """Each block is compiled as a program of one module; those with streams need libraries."""
    toolchains.built(need)
    blocks = [
        block
        for block in toolchains.blocks("go", ROOT / "docs/clients/go.md", GO / "README.md")
        if ("client/grpc" in block) == (folder == GO_GRPC)
    ]
    (tmp_path / "go.mod").write_text(module())
    if folder == GO_GRPC:
        (tmp_path / "go.sum").write_bytes((GO_GRPC / "go.sum").read_bytes())
    for number, block in enumerate(blocks):
        (tmp_path / f"block{number}").mkdir()
        (tmp_path / f"block{number}" / "main.go").write_text(block)

    assert len(blocks) >= least
    environment = toolchains.go_environment(folder) | {"GOFLAGS": "-mod=mod"}
    toolchains.run(["go", "vet", "./..."], tmp_path, environment)
