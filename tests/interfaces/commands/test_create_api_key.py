"""``manage.py create_api_key``: prints a key to stdout that works."""

import subprocess
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.utils import timezone

from channels_app.core import keys
from channels_app.models import ApiKey, Channel, Producer
from channels_app.registry import authentication
from channels_app.registry.cache import config_cache

pytestmark = pytest.mark.django_db


def create(producer: str, **options: Any) -> tuple[str, str]:
    """Return the output on stdout and on stderr."""
    out, err = StringIO(), StringIO()
    call_command("create_api_key", producer, stdout=out, stderr=err, **options)
    return out.getvalue(), err.getvalue()


def test_only_the_key_is_on_stdout_and_it_works() -> None:
    Producer.objects.create(slug="shop")

    out, err = create("shop", all_channels=True)

    (text,) = out.splitlines()
    parsed = keys.parse(text)
    assert parsed is not None
    config_cache.refresh(now=True)
    view = config_cache.key(parsed[0])
    assert view is not None
    assert keys.matches(parsed[1], view.digest)
    assert view.principal.scopes == ("publish",)
    assert f"Key {parsed[0]} of shop: publish on all channels, without expiry." in err
    assert parsed[1] not in err


def test_scopes_channels_label_and_expiry_are_kept() -> None:
    Channel.objects.create(slug="orders")

    create(
        "shop",
        scopes=["publish", "read", "read"],
        channels=["orders"],
        expires_days=1.5,
        label="till",
    )

    key = ApiKey.objects.get()
    assert (key.scopes, key.channels, key.label) == (["publish", "read"], ["orders"], "till")
    assert key.expires_at is not None
    left = key.expires_at - timezone.now()
    assert timedelta(hours=35, minutes=59) < left <= timedelta(hours=36)


def test_the_first_key_of_an_installation_makes_its_producer() -> None:
    out, err = create("ops", scopes=["admin"], all_channels=True)

    assert len(out.splitlines()) == 1
    assert "There was no producer ops: it was created." in err


def test_option_existing_refuses_to_create_a_producer() -> None:
    Producer.objects.create(slug="shop")

    with pytest.raises(CommandError, match=r"no producer 'shup'. There are: shop. .* --existing"):
        create("shup", existing=True, all_channels=True)

    assert Producer.objects.count() == 1


@pytest.mark.trap("a key for all channels by omission")
def test_the_command_requires_an_explicit_option_for_all_channels() -> None:
    with pytest.raises(CommandError, match=r"all_channels: .* set all_channels for all of them"):
        create("shop", scopes=["publish"])
    assert not ApiKey.objects.exists()

    create("shop", scopes=["publish"], all_channels=True)
    assert ApiKey.objects.get().reaches_all


def test_scope_admin_implies_all_channels_and_refuses_names() -> None:
    Channel.objects.create(slug="orders")

    _, err = create("ops", scopes=["admin"])

    assert "admin on all channels" in err
    with pytest.raises(CommandError, match="An admin key may use every channel"):
        create("ops", scopes=["admin"], channels=["orders"])


def test_sigv4_prints_lines_that_a_shell_evaluates() -> None:
    out, err = create("ops", scopes=["admin"], sigv4=True)

    key, *lines = out.splitlines()
    shell = subprocess.run(
        ["/bin/sh", "-c", f'{"; ".join(lines)}; echo "$AWS_ACCESS_KEY_ID $AWS_SECRET_ACCESS_KEY"'],
        capture_output=True,
        text=True,
        check=True,
    )
    access_key_id, secret = shell.stdout.split()
    parsed = keys.parse(key)
    assert parsed is not None
    assert access_key_id == f"HSAK{parsed[0].upper()}"
    view = config_cache.key(parsed[0])
    assert view is not None
    assert authentication.sigv4_secret(access_key_id) == (view.principal, secret)
    assert secret not in err


def test_a_refused_key_leaves_no_producer_behind() -> None:
    with pytest.raises(CommandError, match="There is no channel nowhere"):
        create("shop", channels=["nowhere"])

    assert not Producer.objects.exists()


def test_a_producer_that_exists_stays_as_it_is() -> None:
    Producer.objects.create(slug="shop", description="mine", disabled=True)

    _, err = create("shop", all_channels=True)

    assert Producer.objects.get().description == "mine"
    assert "created" not in err
    assert "disabled" in err


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), 1e9])
def test_an_invalid_expiry_is_refused(days: float) -> None:
    with pytest.raises(CommandError, match="--expires-days must be above 0"):
        create("shop", expires_days=days, all_channels=True)


def test_an_unknown_scope_is_reported_with_the_valid_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = load_command_class("delivery", "create_api_key")
    with pytest.raises(SystemExit) as ended:
        command.run_from_argv(["manage.py", "create_api_key", "shop", "--scope", "everything"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "invalid choice: 'everything'" in said
    assert "publish" in said
