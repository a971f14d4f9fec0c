"""The example applications: how many lines change in a migration to Hookstation."""

import re
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
EXAMPLES = ROOT / "clients/examples"


def folders() -> set[str]:
    return {path.name for path in EXAMPLES.iterdir() if path.is_dir()}


@pytest.mark.parametrize(
    ("before", "package", "ours"),
    [
        ("celery/before.py", "from celery", "from hookstation_client.celery"),
        ("bull/before.mjs", '"bull"', '"@hookstation/bull"'),
        ("bullmq/before.mjs", '"bullmq"', '"@hookstation/bullmq"'),
    ],
)
def test_before_and_after_differ_in_the_import(before: str, package: str, ours: str) -> None:
    file = EXAMPLES / before
    (line,) = [line for line in file.read_text().splitlines() if package in line]
    assert re.match("from|import", line)
    assert file.with_stem("after").read_text() == file.read_text().replace(package, ours)


@pytest.mark.parametrize("folder", sorted(folders()))
def test_each_example_has_commands_and_is_listed(folder: str) -> None:
    assert "```sh" in (EXAMPLES / folder / "README.md").read_text()
    listed = (ROOT / "docs/clients/README.md").read_text()
    assert f"(../../clients/examples/{folder}/README.md)" in listed
    stems = {path.stem.lower() for path in (EXAMPLES / folder).rglob("*.*")}
    assert {"before", "after"} <= stems
