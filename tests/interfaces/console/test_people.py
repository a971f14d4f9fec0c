"""Browser security: cookies, CSRF protection and content security policies."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from broker_site.server import security
from tests.support import people
from tests.support.factories import TeamFactory

pytestmark = pytest.mark.django_db

FORMS = ("/accounts/login/", "/portal/acme/keys/new/", "/admin/channels_app/channel/add/")
POLICIES = {
    "/admin/": security.CONSOLE,
    "/admin/channels_app/consumer/": security.CONSOLE,
    "/portal/acme/": security.STRICT,
    "/accounts/login/": security.STRICT,
    "/accounts/nothing/": security.STRICT,
    "/api/docs/": security.DOCS,
    "/api/schema/": security.NOTHING,
    "/api/v1/channels": security.NOTHING,
    "/livez": security.NOTHING,
    "/metrics": security.NOTHING,
    "/nothing": security.NOTHING,
    "/static/nothing": security.NOTHING,
}


def owner_and_operator(**more: Any) -> Client:
    """Return a client of a user who is both, so that every page exists."""
    people.person("olga", TeamFactory.create(slug="acme"), "owner")
    User.objects.update(is_staff=True, is_superuser=True)
    client = Client(**more)
    client.force_login(User.objects.get())
    return client


@pytest.mark.trap("cross-site request forgery")
def test_cookies_are_http_only_and_same_site() -> None:
    User.objects.create_user("mia", password="correct horse")
    client = Client()
    answer = client.post("/accounts/login/", {"login": "mia", "password": "correct horse"})
    assert answer.status_code == 302
    assert set(answer.cookies) == {"sessionid", "csrftoken"}
    for cookie in answer.cookies.values():
        assert cookie["httponly"]
        assert cookie["samesite"] == "Lax"


def test_without_https_cookies_are_not_secure_and_no_proxy_is_trusted() -> None:
    """Over HTTPS they are: the process of the last test says so."""
    assert settings.PUBLIC_URL.startswith("http://")
    assert not settings.SESSION_COOKIE_SECURE
    assert not settings.CSRF_COOKIE_SECURE
    assert settings.CSRF_TRUSTED_ORIGINS == [settings.PUBLIC_URL]
    assert settings.SECURE_PROXY_SSL_HEADER is None


@pytest.mark.trap("cross-site request forgery")
@pytest.mark.parametrize("path", FORMS)
def test_a_cross_site_form_is_refused(path: str) -> None:
    client = owner_and_operator(enforce_csrf_checks=True)
    assert client.get(path).status_code in {200, 302}
    forged = [
        client.post(path, {"slug": "stolen"}),
        client.post(path, {"slug": "stolen", "csrfmiddlewaretoken": "a" * 64}),
    ]
    assert [answer.status_code for answer in forged] == [403, 403]
    # Even with a valid token: over TLS the Referer must be a page of this site.
    token = client.cookies["csrftoken"].value if "csrftoken" in client.cookies else "a" * 32
    elsewhere = client.post(
        path, {"csrfmiddlewaretoken": token}, secure=True, HTTP_REFERER="https://evil.example/"
    )
    assert elsewhere.status_code == 403


def test_every_changing_console_view_checks_csrf() -> None:
    client = owner_and_operator(enforce_csrf_checks=True)
    for path in ("/admin/channels_app/channel/", "/admin/delivery/delivery/", "/admin/logout/"):
        assert client.post(path, {"action": "delete_selected"}).status_code == 403, path


@pytest.mark.trap("a body or response executed as a page")
def test_every_response_has_security_headers() -> None:
    client = owner_and_operator()
    for path, policy in POLICIES.items():
        answer = client.get(path)
        assert answer["Content-Security-Policy"] == policy, path
        for name, value in security.FIXED:
            assert answer[name] == value


def test_content_security_policies_allow_no_other_hosts() -> None:
    for policy in {policy for _, policy in security.POLICIES} | {security.NOTHING}:
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert "*" not in policy


SAFE = """
import os, stat, django
from django.conf import settings
from django.core.management import call_command
from broker_site.server import security
django.setup()
call_command("check", deploy=True, fail_level="WARNING", stderr=open(os.devnull, "w"))
sent = dict(security.complete([], "/api/v1/channels"))
mode = stat.S_IMODE(os.stat(settings.DATABASES["default"]["NAME"]).st_mode)
print(settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE, settings.CSRF_TRUSTED_ORIGINS)
print(sent.get("Strict-Transport-Security"), settings.SECURE_PROXY_SSL_HEADER, oct(mode))
"""


@pytest.mark.trap("an installation that is open by default")
@pytest.mark.trap("cross-site request forgery")
@pytest.mark.slow("starts a process")
def test_an_installation_behind_tls_passes_djangos_checks(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "SECRET_KEY": "k3-" + "0123456789abcdef" * 4,
        "HOOKSTATION_PUBLIC_URL": "https://hooks.example",
        "HOOKSTATION_DATA_DIR": str(tmp_path / "data"),
        "DJANGO_SETTINGS_MODULE": "broker_site.settings",
        "HOOKSTATION_TRUSTED_PROXIES": "1",
        "HOOKSTATION_HSTS_S": "60",
    }
    command = [sys.executable, "-c", SAFE]
    done = subprocess.run(
        command, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-2:] == [
        "True True ['https://hooks.example']",
        "max-age=60 ('HTTP_X_FORWARDED_PROTO', 'https') 0o600",
    ], done.stderr
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
