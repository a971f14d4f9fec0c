"""The clients of all languages: what their guides name, their versions, and their licences."""

import re
from pathlib import Path

import hookstation_client
import pytest
from hookstation_client.client import Schedules

from tests.support import node
from tests.support.toolchains import GO, GO_GRPC, JAVA, JAVA_GRPC, JAVA_MAIN, ROOT

GO_FILES = [path for path in [*GO.glob("*.go"), *GO_GRPC.glob("*.go")] if "_test" not in path.stem]
JAVA_CLIENT = JAVA_MAIN / "dev/hookstation/client/Hookstation.java"


def found(pattern: str, *paths: Path) -> list[str]:
    """What the pattern's group matches in these files, line by line."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [name for text in texts for name in re.findall(pattern, text, re.MULTILINE)]


METHODS = {
    "python": {
        name
        for kind in (hookstation_client.Hookstation, Schedules)
        for name in vars(kind)
        if not name.startswith("_")
    }
    - {"close", "schedules"},
    "go": {*found(r"^func \(c \*Client\) ([A-Z]\w*)\(", *GO_FILES)},
    "java": {*found(r"^    public (?!static)[\w<>]+ (\w+)\(", JAVA_CLIENT)},
    "node": {
        *found(
            r"^  (?:async )?\*?(\w+)(?:<.*>)?\(",
            *(node.SOURCE / "src" / name for name in ("client.ts", "schedules.ts")),
        )
    }
    - {"constructor", "schedules"},
}
"""The public methods of each client."""


@pytest.mark.parametrize("language", METHODS)
def test_guide_names_every_method(language: str) -> None:
    named = {*found(r"`(\w+)`", ROOT / f"docs/clients/{language}.md")}

    assert len(METHODS[language]) > 15
    assert METHODS[language] - named == set()


@pytest.mark.parametrize(
    ("folder", "file", "pattern"),
    [
        (GO, "doc.go", r'^const Version = "(.+)"'),
        (JAVA, "pom.xml", r"<version>(.+?)</version>"),
        (JAVA_GRPC, "pom.xml", r"<version>(.+?)</version>"),
        (node.SOURCE, "package.json", r'^  "version": "(.+)"'),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else None,
)
def test_version_is_in_the_changelog_and_the_licence_is_there(
    folder: Path, file: str, pattern: str
) -> None:
    version = found(pattern, folder / file)[0]

    assert f"{version}, the first release" in (folder / "CHANGELOG.md").read_text()
    assert (folder / "LICENSE").read_text() == (ROOT / "clients/python/LICENSE").read_text()


def test_artifacts_for_java_have_the_version_of_the_code() -> None:
    (version,) = found('VERSION = "(.+)"', JAVA_CLIENT)

    for folder in (JAVA, JAVA_GRPC):
        assert f"<version>{version}</version>" in (folder / "pom.xml").read_text()


def test_everything_public_in_go_is_documented() -> None:
    exported = r"^(?!//).*\n(?:func (?:\(\w+ \*?[A-Z]\w*\) )?|type )([A-Z]\w*)"

    assert {path.name: names for path in GO_FILES if (names := found(exported, path))} == {}
