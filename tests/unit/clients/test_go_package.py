"""The Go client as a package: its unit tests, its imports, and the names in its guide."""

import re

import pytest

from tests.support import toolchains
from tests.support.toolchains import GO, GO_ENVIRONMENT, ROOT

GUIDE = ROOT / "docs/clients/go.md"


@pytest.fixture(autouse=True)
def _go() -> None:
    toolchains.need_or_skip("go")


@pytest.mark.slow("go compiles the package and its tests")
def test_unit_tests_pass_and_vet_finds_nothing() -> None:
    toolchains.run(["go", "vet", "./..."], GO, GO_ENVIRONMENT)

    said = toolchains.run(
        ["go", "test", "-count=1", "-v", "-skip", "Worker", "."], GO, GO_ENVIRONMENT
    )

    assert len(re.findall(r"^--- PASS", said, re.MULTILINE)) >= 30, said


@pytest.mark.slow("gofmt and go list start the toolchain")
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


@pytest.mark.slow("go doc starts the toolchain")
def test_guide_names_every_method_and_everything_public_is_documented() -> None:
    public = toolchains.run(["go", "doc", "-all", "Client"], GO, GO_ENVIRONMENT)
    methods = set(re.findall(r"^ *func \(c \*Client\) (\w+)\(", public, re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    exported = re.compile(
        r"^(?!//).*\n(?:func (?:\(\w+ \*?[A-Z]\w*\) )?|type )([A-Z]\w*)", re.MULTILINE
    )
    bare = [
        f"{path.name}: {name}"
        for path in GO.glob("*.go")
        if not path.stem.endswith("_test")
        for name in exported.findall(path.read_text())
    ]

    assert len(methods) > 15
    assert methods - named == set()
    assert bare == []


@pytest.mark.slow("go vet compiles each block")
def test_blocks_of_guide_and_readme_compile(tmp_path_factory: pytest.TempPathFactory) -> None:
    blocks = [
        block
        for page in (GUIDE, GO / "README.md")
        for block in re.findall(r"```go\n(.*?)```", page.read_text(), re.DOTALL)
    ]

    for block in blocks:
        folder = tmp_path_factory.mktemp("block")
        (folder / "go.mod").write_text(
            "module block\n\ngo 1.23\n\nrequire hookstation.dev/client v0.0.0\n\n"
            f"replace hookstation.dev/client => {GO}\n"
        )
        (folder / "main.go").write_text(block)
        toolchains.run(["go", "vet", "."], folder, GO_ENVIRONMENT)
    assert len(blocks) >= 4
