"""The archive folder setting: broker and pipeline accept and refuse the same values."""

from pathlib import Path

import pytest

from broker_site import env
from pipeline import settings
from pipeline.lake import layout

FOLDERS = ["/srv/lake", "/srv/the lake", "/srv/lake:2", "/srv/lake/#1%20", "/"]
REFUSED = {
    "s3://bucket/lake": "addresses are not supported",
    "s3a://bucket/lake": "addresses are not supported",
    "gs://bucket": "addresses are not supported",
    "hdfs://host:8020/lake": "addresses are not supported",
    "file:///srv/lake": "addresses are not supported",
    "file:/srv/lake": "addresses are not supported",
    "C:\\lake": "addresses are not supported",
    "lake": "an absolute folder",
    "./lake": "an absolute folder",
    "~/lake": "an absolute folder",
    "/srv/l*ke": r"\* means more than itself",
    "/srv/{a,b}": r"\{ means more than itself",
}


@pytest.mark.parametrize("text", FOLDERS)
def test_a_folder_is_taken_as_it_is(text: str) -> None:
    variables = {"HOOKSTATION_LAKE": text}
    assert env.read(variables).lake == text
    assert settings.read(variables).lake == Path(text)


@pytest.mark.trap("a bucket URL used as a folder")
@pytest.mark.parametrize(("text", "why"), REFUSED.items(), ids=list(REFUSED))
def test_invalid_lake_folders_are_refused_by_broker_and_pipeline(text: str, why: str) -> None:
    variables = {"HOOKSTATION_LAKE": text}
    with pytest.raises(env.BadEnvironment, match=rf"HOOKSTATION_LAKE=.* cannot be used.*{why}"):
        env.read(variables)
    with pytest.raises(
        settings.InvalidSetting, match=rf"HOOKSTATION_LAKE=.* cannot be used.*{why}"
    ):
        settings.read(variables)


def test_without_one_nothing_is_archived() -> None:
    for variables in ({}, {"HOOKSTATION_LAKE": ""}, {"HOOKSTATION_LAKE": "  "}):
        assert env.read(variables).lake == ""
        assert settings.read(variables).lake is None


def test_unfinished_files_are_outside_of_the_tables() -> None:
    aside = layout.staging_path("deliveries/day=2026-11-22/000000000017.parquet", 11)

    assert Path(aside).parts[0] == layout.STAGING
    assert layout.STAGING not in layout.TABLES
