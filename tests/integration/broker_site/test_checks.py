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

from broker_site.env import Environment
from broker_site.observability import checks
from channels_app.conf import INSTALLATION
from channels_app.core.encryption import generate_key
from channels_app.database.dialects.mysql import MySQL
from channels_app.database.dialects.sqlite import SQLite


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


@pytest.mark.parametrize(("key", "bad"), [("", 1), ("short", 1), ("x" * 49, 1), ("x" * 50, 0)])
def test_a_weak_secret_key_is_an_error(key: str, bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SECRET_KEY", key)

    assert ids(checks.secret_key()) == ["hookstation.E001"] * bad


def test_encryption_keys(environment: Any) -> None:
    environment(encryption_keys=(generate_key(), generate_key()))
    assert checks.encryption_keys() == []

    environment(encryption_keys=(generate_key(), "c2hvcnQ="))
    found = checks.encryption_keys()
    assert ids(found) == ["hookstation.E002"]
    assert "key 2" in str(found[0].msg)


@pytest.mark.parametrize(
    ("check", "values", "found"),
    [
        (checks.allowed_targets, {"allowed_targets": ""}, ""),
        (checks.allowed_targets, {"allowed_targets": "10.0.0.0/8,fd00::/8"}, ""),
        (checks.allowed_targets, {"allowed_targets": "intranet"}, "E003"),
        (checks.public_url, {"public_url": "https://hooks.example.com"}, ""),
        (checks.public_url, {"public_url": "http://127.0.0.1:8000/"}, ""),
        (checks.public_url, {"public_url": "hooks.example.com"}, "E004"),
        (checks.public_url, {"public_url": "ftp://hooks.example.com"}, "E004"),
        (checks.public_url, {"public_url": "https://hooks.example.com/sub"}, "E004"),
        (checks.public_url, {"public_url": "https://hooks.example.com:99999"}, "E004"),
        (checks.public_url, {"public_url": "https://user:word@hooks.example.com"}, "E004"),
        (checks.times, {"timeout_ms": 300_001}, "E006"),
        (checks.times, {"connect_timeout_ms": 15_001}, "E006"),
        (checks.ca_file, {"ca_file": "/nowhere/none.pem"}, "E007"),
        (checks.sign_up, {"signup": "invitation", "email_url": ""}, ""),
        (checks.sign_up, {"signup": "open", "email_url": "smtp://localhost:25"}, ""),
        (checks.sign_up, {"signup": "open", "email_url": ""}, "W003"),
        (checks.grpc_without_tls, {"grpc_address": ""}, ""),
        (checks.grpc_without_tls, {"grpc_address": "127.0.0.1:9090"}, ""),
        (checks.grpc_without_tls, {"grpc_address": "[::1]:9090"}, ""),
        (checks.grpc_without_tls, {"grpc_address": "9090"}, ""),
        (checks.grpc_without_tls, {"grpc_address": "0.0.0.0:9090"}, "W005"),
        (checks.grpc_without_tls, {"grpc_address": "[::]:9090"}, "W005"),
        (checks.grpc_without_tls, {"grpc_address": "hooks.example.com:9090"}, "W005"),
        (
            checks.grpc_without_tls,
            {"grpc_address": "0.0.0.0:9090", "grpc_certificate": "/etc/chain.pem"},
            "",
        ),
    ],
)
def test_each_bad_setting_is_reported(
    check: Any, values: dict[str, Any], found: str, environment: Any
) -> None:
    environment(**({"grpc_certificate": ""} | values))

    assert ids(check()) == ([f"hookstation.{found}"] if found else [])


@pytest.mark.trap("a lease shorter than the timeout")
def test_a_lease_grace_that_is_too_short_is_an_error(environment: Any) -> None:
    environment(lease_grace_ms=checks.MIN_LEASE_GRACE_MS - 1)

    assert ids(checks.times()) == ["hookstation.E005"]


def test_debug_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "DEBUG", True)

    assert ids(checks.debug()) == ["hookstation.W001"]


@pytest.mark.trap("a database with a known fault")
@pytest.mark.parametrize(("version", "bad"), [((3, 51, 2), 1), ((3, 51, 3), 0), ((3, 52, 0), 0)])
def test_a_faulty_sqlite_version_is_a_warning(
    version: tuple[int, int, int], bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    assert ids(SQLite().check(connection)) == ["hookstation.W002"] * bad


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8.0.17", "W006"),
        ("8.4.3-log", "W006"),
        ("9.7.4", None),
        ("10.0.0", "W006"),
        ("5.7.44", "E010"),
        ("8.0.16", "E010"),
        ("10.11.6-MariaDB-0+deb12u1", None),
        ("11.4.5-MariaDB", None),
        ("11.8.9-MariaDB-0+deb13u1 from Debian", None),
        ("12.3.1-MariaDB", "W006"),
        ("5.5.5-10.6.12-MariaDB", "W006"),
        ("10.5.23-MariaDB", "E010"),
        ("8.0.11-TiDB-v8.5.0", "W006"),
    ],
)
def test_versions_that_lack_skip_locked_or_were_not_tested(text: str, expected: str | None) -> None:
    assert ids(MySQL().check_version(text)) == ([f"hookstation.{expected}"] if expected else [])


def test_another_charset_than_utf8mb4() -> None:
    check = MySQL().check_charset
    assert check("utf8mb4", "utf8mb4") == []
    assert ids(check("latin1", "utf8mb4")) == ["hookstation.E011"]
    assert ids(check("utf8mb4", "utf8")) == ["hookstation.E011"]


@pytest.mark.django_db
def test_an_unreachable_database_server_is_reported() -> None:
    def gone(*args: Any) -> Any:
        raise OperationalError("no route")

    with connection.execute_wrapper(gone):
        assert ids(MySQL().check(connection)) == ["hookstation.E009"]


@pytest.mark.django_db
@pytest.mark.mariadb
def test_the_test_server_passes_all_checks() -> None:
    assert checks.database(databases=["default"]) == []


@pytest.mark.django_db
def test_django_runs_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SECRET_KEY", "short")

    with pytest.raises(SystemCheckError, match=r"hookstation\.E001"):
        call_command("check", databases=["default"])


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
