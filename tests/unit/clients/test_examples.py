"""The example applications: how many lines change in a migration to Hookstation."""

import difflib
import re
from pathlib import Path

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
EXAMPLES = ROOT / "clients/examples"
LOOKALIKES = {
    "aws-sdk-go": "before.env",
    "aws-sdk-java": "before.env",
    "aws-sdk-js": "before.env",
    "boto3": "before.env",
    "bull": "before.mjs",
    "bullmq": "before.mjs",
    "celery": "before.py",
    "celery-sqs": "before.env",
    "django-q2": "before.env",
    "sqs-consumer": "before.env",
}
"""The one file that differs in each example; all other files are the same before and after."""


def folders() -> set[str]:
    return {path.name for path in EXAMPLES.iterdir() if path.is_dir()}


def changes(folder: str) -> tuple[list[str], list[str]]:
    """Return the removed and the added lines."""
    before = EXAMPLES / folder / LOOKALIKES[folder]
    after = before.with_stem("after")
    lines = list(
        difflib.unified_diff(
            before.read_text().splitlines(), after.read_text().splitlines(), n=0, lineterm=""
        )
    )[2:]
    gone = [line[1:] for line in lines if line.startswith("-")]
    come = [line[1:] for line in lines if line.startswith("+")]
    return gone, come


@pytest.mark.parametrize("folder", LOOKALIKES)
def test_before_and_after_differ_in_one_line(folder: str) -> None:
    gone, come = changes(folder)
    assert len(gone) <= 1
    assert len(come) == 1


def test_the_celery_example_differs_in_the_import() -> None:
    (old,), (new,) = changes("celery")
    assert old.startswith("from celery import")
    assert new == old.replace("from celery", "from hookstation_client.celery")


@pytest.mark.parametrize("package", ["bull", "bullmq"])
def test_the_job_queues_differ_in_the_import(package: str) -> None:
    (old,), (new,) = changes(package)
    assert old.startswith("import ")
    assert old.endswith(f' from "{package}";')
    assert new == old.replace(f'"{package}"', f'"@hookstation/{package}"')


@pytest.mark.parametrize(
    "folder", [name for name, file in LOOKALIKES.items() if file == "before.env"]
)
def test_the_sqs_examples_differ_in_the_endpoint(folder: str) -> None:
    assert changes(folder) == ([], ["AWS_ENDPOINT_URL_SQS=http://127.0.0.1:8000"])
    files = {path for path in (EXAMPLES / folder).rglob("*") if "node_modules" not in path.parts}
    programs = [path for path in files if path.suffix in {".py", ".mjs", ".go", ".java"}]
    assert programs
    code = "".join(path.read_text() for path in programs)
    assert not re.search("hookstation|endpoint_?(url|override)|BaseEndpoint", code, re.IGNORECASE)


@pytest.mark.parametrize("folder", sorted(folders()))
def test_each_example_has_commands_and_is_listed(folder: str) -> None:
    assert "```sh" in (EXAMPLES / folder / "README.md").read_text()
    listed = (ROOT / "docs/clients/README.md").read_text()
    assert f"(../../clients/examples/{folder}/README.md)" in listed
    stems = {path.stem.lower() for path in (EXAMPLES / folder).rglob("*.*")}
    assert {"before", "after"} <= stems
