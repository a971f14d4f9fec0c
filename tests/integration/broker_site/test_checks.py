"""System checks: each bad setting is reported with a remedy, a good one is not reported."""

import dataclasses
import os
import sqlite3
from typing import Any

import pytest
from django.conf import settings
from django.core import checks as django_checks
from django.core.checks import Tags
from django.core.checks.registry import registry
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import OperationalError, connection

from broker_site import checks
from broker_site.env import Environment
from channels_app.conf import INSTALLATION
from channels_app.core.encryption import generate_key


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Changes the installation's settings for one test."""

    def change(**values: Any) -> None:
        changed: Environment = dataclasses.replace(settings.ENVIRONMENT, **values)
        monkeypatch.setattr(settings, "ENVIRONMENT", changed)

    return change


def ids(found: list[django_checks.CheckMessage]) -> list[str | None]:
    """Return the ids of what was found, each of which must have a remedy."""
    assert all(message.hint for message in found)
    return [message.id for message in found]


@pytest.mark.parametrize("key", ["", "short", "x" * 49])
def test_a_weak_secret_key_is_an_error(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SECRET_KEY", key)

    assert ids(checks.secret_key()) == ["hookstation.E001"]


def test_a_long_secret_key_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SECRET_KEY", "x" * 50)

    assert checks.secret_key() == []


def test_encryption_keys(environment: Any) -> None:
    environment(encryption_keys=(generate_key(), generate_key()))
    assert checks.encryption_keys() == []

    environment(encryption_keys=(generate_key(), "c2hvcnQ="))
    found = checks.encryption_keys()
    assert ids(found) == ["hookstation.E002"]
    assert "key 2" in str(found[0].msg)


@pytest.mark.parametrize(("text", "bad"), [("", 0), ("10.0.0.0/8,fd00::/8", 0), ("intranet", 1)])
def test_allowed_targets(text: str, bad: int, environment: Any) -> None:
    environment(allowed_targets=text)

    assert ids(checks.allowed_targets()) == ["hookstation.E003"] * bad


@pytest.mark.parametrize(
    ("url", "bad"),
    [
        ("https://hooks.example.com", 0),
        ("http://127.0.0.1:8000/", 0),
        ("hooks.example.com", 1),
        ("ftp://hooks.example.com", 1),
        ("https://hooks.example.com/sub", 1),
        ("https://hooks.example.com:99999", 1),
        ("https://user:word@hooks.example.com", 1),
    ],
)
def test_public_url(url: str, bad: int, environment: Any) -> None:
    environment(public_url=url)

    assert ids(checks.public_url()) == ["hookstation.E004"] * bad


@pytest.mark.parametrize(
    ("address", "certificate", "bad"),
    [
        ("", "", 0),
        ("127.0.0.1:9090", "", 0),
        ("[::1]:9090", "", 0),
        ("9090", "", 0),
        ("0.0.0.0:9090", "", 1),
        ("[::]:9090", "", 1),
        ("hooks.example.com:9090", "", 1),
        ("0.0.0.0:9090", "/etc/chain.pem", 0),
    ],
)
def test_grpc_without_tls(address: str, certificate: str, bad: int, environment: Any) -> None:
    environment(grpc_address=address, grpc_certificate=certificate)

    assert ids(checks.grpc_without_tls()) == ["hookstation.W005"] * bad


@pytest.mark.trap("a lease shorter than the timeout")
def test_a_lease_grace_that_is_too_short_is_an_error(environment: Any) -> None:
    environment(lease_grace_ms=checks.MIN_LEASE_GRACE_MS - 1)

    assert ids(checks.times()) == ["hookstation.E005"]


@pytest.mark.parametrize("values", [{"timeout_ms": 300_001}, {"connect_timeout_ms": 15_001}])
def test_inconsistent_timeouts_are_errors(values: dict[str, int], environment: Any) -> None:
    environment(**values)

    assert ids(checks.times()) == ["hookstation.E006"]


def test_a_missing_ca_file_is_an_error(environment: Any, tmp_path: Any) -> None:
    environment(ca_file=str(tmp_path / "none.pem"))

    assert ids(checks.ca_file()) == ["hookstation.E007"]


def test_debug_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "DEBUG", True)

    assert ids(checks.debug()) == ["hookstation.W001"]


@pytest.mark.trap("a database with a known fault")
@pytest.mark.parametrize(("version", "bad"), [((3, 51, 2), 1), ((3, 51, 3), 0), ((3, 52, 0), 0)])
def test_a_faulty_sqlite_version_is_a_warning(
    version: tuple[int, int, int], bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    assert ids(checks._sqlite()) == ["hookstation.W002"] * bad


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("8.0.17", 0),
        ("8.4.3-log", 0),
        ("9.7.4", 0),
        ("5.7.44", 1),
        ("8.0.16", 1),
        ("10.11.6-MariaDB-0+deb12u1", 0),
        ("5.5.5-10.6.12-MariaDB", 0),
        ("10.5.23-MariaDB", 1),
        ("8.0.11-TiDB-v8.5.0", 0),
    ],
)
def test_versions_without_skip_locked(text: str, bad: int) -> None:
    assert ids(checks._mysql_version(text)) == ["hookstation.E010"] * bad


def test_another_charset_than_utf8mb4() -> None:
    assert checks._mysql_charset("utf8mb4", "utf8mb4") == []
    assert ids(checks._mysql_charset("latin1", "utf8mb4")) == ["hookstation.E011"]
    assert ids(checks._mysql_charset("utf8mb4", "utf8")) == ["hookstation.E011"]


@pytest.mark.django_db
def test_an_unreachable_database_server_is_reported() -> None:
    def gone(*args: Any) -> Any:
        raise OperationalError("no route")

    with connection.execute_wrapper(gone):
        assert ids(checks._mysql(connection)) == ["hookstation.E009"]


@pytest.mark.django_db
@pytest.mark.mariadb
def test_the_test_server_passes_all_checks() -> None:
    assert checks.database(databases=["default"]) == []


@pytest.mark.django_db
def test_django_runs_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SECRET_KEY", "short")

    with pytest.raises(SystemCheckError, match=r"hookstation\.E001"):
        call_command("check", databases=["default"])


@pytest.mark.parametrize(
    ("signup", "email_url", "found"),
    [
        pytest.param("invitation", "", [], id="by invitation"),
        pytest.param("open", "smtp://localhost:25", [], id="with mail"),
        pytest.param("open", "", ["hookstation.W003"], id="without mail"),
    ],
)
def test_open_signup_without_mail_is_an_error(
    signup: str, email_url: str, found: list[str], environment: Any
) -> None:
    environment(signup=signup, email_url=email_url)

    assert ids(checks.sign_up()) == found


def test_an_unknown_variable_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOOKSTATION_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOOKSTATION_RETENTION_DAYS", "30")
    monkeypatch.setenv("HOOKSTATION_ENCRYPTION_KEYS_FILE", "/etc/hookstation/keys")
    monkeypatch.setenv("HOOKSTATION_KEY", "hsk_...")
    assert ids(checks.misspelt()) == []

    monkeypatch.setenv("HOOKSTATION_RETENTON_DAYS", "3")
    monkeypatch.setenv("HOOKSTATION_Q", "3")
    nothing_like_it, misspelt = checks.misspelt()
    assert "HOOKSTATION_Q is not a setting" in nothing_like_it.msg
    assert misspelt.hint == "Did you mean HOOKSTATION_RETENTION_DAYS?"


def test_checks_of_settings_run_before_each_command() -> None:
    ours = [one for one in registry.registered_checks if one.__module__ == checks.__name__]
    assert len(ours) > 5
    assert [one for one in ours if not {INSTALLATION, Tags.database} & set(one.tags)] == []
