"""The environment: settings that are refused, and safe settings in the README's example."""

import re

import pytest
from django.conf import settings

from broker_site import env
from channels_app.conf import MAX_BODY_BYTES


@pytest.mark.trap("bodies without a limit")
@pytest.mark.parametrize("name", ["HOOKSTATION_MAX_BODY_BYTES", "HOOKSTATION_MAX_BATCH_BYTES"])
def test_body_size_settings_have_a_maximum(name: str) -> None:
    env.read({name: str(MAX_BODY_BYTES)})
    with pytest.raises(env.BadEnvironment, match=f"{name}=.* cannot be used.*67108864"):
        env.read({name: "200000000"})


@pytest.mark.parametrize("url", ["postgres://u:secret@h/db", "shop.sqlite3", "redis://h"])
def test_other_databases_are_refused_without_showing_their_password(url: str) -> None:
    for good in ("", "sqlite:////srv/shop.sqlite3", "mysql://u:secret@h/db", "mysql2://h/db"):
        env.read({"DATABASE_URL": good})
    with pytest.raises(env.BadEnvironment, match=r"^DATABASE_URL cannot be used: expected sqlite"):
        env.read({"DATABASE_URL": url})


@pytest.mark.trap("an installation that is open by default")
def test_the_readme_installation_is_closed_and_has_separate_keys() -> None:
    page = (settings.BASE_DIR / "README.md").read_text()
    part = page.partition("## An installation of your own")[2]
    commands = part.partition("```sh\n")[2].partition("```")[0]
    chosen = dict(re.findall(r"^(\w+)=(.*)$", commands, re.MULTILINE))
    assert "umask 077" in commands
    assert {"SECRET_KEY", "HOOKSTATION_ENCRYPTION_KEYS"} <= chosen.keys()
    assert not {"HOOKSTATION_ALLOWED_TARGETS", "HOOKSTATION_TRUSTED_PROXIES"} & chosen.keys()
    untouched = env.read({})
    assert (untouched.allowed_targets, untouched.trusted_proxies, untouched.metrics_token) == (
        "",
        0,
        "",
    )
