"""Signing in: one page for all users, with a limit of attempts and a password reset."""

import re
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import (
    format_hotp_value,
    generate_totp_secret,
    hotp_value,
    yield_hotp_counters_from_time,
)
from django.contrib.auth.models import User
from django.core import mail
from django.test import Client

from broker_site.observability import diagnosis
from channels_app.core.encryption import generate_key
from channels_app.models import AuditEntry, Membership
from channels_app.portal.accounts import SecondFactors
from channels_app.registry import data_encryption, reencryption
from tests.interfaces.portal.test_access import STRICT, check
from tests.support.factories import TeamFactory
from tests.support.keys import host

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery"
LOGIN = "/accounts/login/"


def make(name: str = "mia", **more: Any) -> User:
    return User.objects.create_user(name, f"{name}@example.com", PASSWORD, **more)


def sign_in(client: Client, login: str, password: str = PASSWORD, **more: Any) -> Any:
    return client.post(LOGIN, {"login": login, "password": password}, **more)


def sign_up(client: Client, name: str, password: str = PASSWORD) -> str:
    """Ask for an account; return the page."""
    form = {"username": name, "email": f"{name}@example.com"}
    form |= {"password1": password, "password2": password}
    return str(client.post("/accounts/signup/", form).content.decode())


def is_in(client: Client) -> bool:
    return bool(client.get("/portal/?all").status_code == 200)


@pytest.mark.parametrize("login", ["mia", "mia@example.com"])
def test_users_sign_in_by_name_or_mail_address(login: str) -> None:
    user, client = make(), Client()
    Membership.objects.create(team=TeamFactory.create(slug="acme"), user=user, role="viewer")

    answer = sign_in(client, login)

    assert answer["Location"] == "/portal/"
    assert client.get("/portal/")["Location"] == "/portal/acme/"
    client.post("/accounts/logout/")
    assert not is_in(client)


@pytest.mark.trap("guessed passwords")
def test_five_wrong_passwords_lock_the_account_for_all_addresses() -> None:
    make()
    for _ in range(5):
        assert "not correct" in sign_in(Client(), "mia", "guess").content.decode()

    for address in ("127.0.0.1", "10.1.2.3"):
        client = Client(REMOTE_ADDR=address)
        assert "Too many failed login attempts" in sign_in(client, "mia").content.decode()
        assert not is_in(client)


@pytest.mark.trap("guessed passwords")
def test_guessing_many_names_locks_the_address() -> None:
    make()
    for number in range(10):
        sign_in(Client(), f"nobody-{number}", "guess")

    assert "Too many" in sign_in(Client(), "mia").content.decode()
    assert sign_in(Client(REMOTE_ADDR="10.1.2.3"), "mia").status_code == 302


@pytest.mark.trap("guessed passwords")
def test_a_forged_x_forwarded_for_is_ignored() -> None:
    for number in range(10):
        sign_in(Client(HTTP_X_FORWARDED_FOR=f"10.0.0.{number}"), f"nobody-{number}", "guess")

    make()
    assert "Too many" in sign_in(Client(HTTP_X_FORWARDED_FOR="10.9.9.9"), "mia").content.decode()


def test_trusted_proxies_distinguish_addresses(settings: Any) -> None:
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = 1
    for number in range(10):
        sign_in(Client(HTTP_X_FORWARDED_FOR="10.0.0.1"), f"nobody-{number}", "guess")

    make()
    answer = sign_in(Client(HTTP_X_FORWARDED_FOR="10.0.0.1, 10.9.9.9"), "mia")
    assert answer.status_code == 302


def test_the_console_uses_the_common_sign_in() -> None:
    make("olga", is_staff=True, is_superuser=True)
    client = Client()
    assert client.get("/admin/login/?next=/admin/")["Location"] == f"{LOGIN}?next=%2Fadmin%2F"
    answer = client.post("/admin/login/", {"username": "olga", "password": PASSWORD})
    assert answer["Location"].startswith(LOGIN)
    assert client.get("/admin/").status_code == 302

    assert sign_in(client, "olga")["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200


def test_a_member_without_staff_status_is_refused_by_the_console() -> None:
    client = Client()
    client.force_login(make())

    answer = client.get("/admin/", follow=True)

    assert answer.status_code == 403
    assert "not an operator" in answer.content.decode()


def test_without_an_invitation_signup_is_closed() -> None:
    assert "by invitation" in Client().get("/accounts/signup/").content.decode()
    assert "by invitation" in sign_up(Client(), "eve")
    assert not User.objects.exists()


def test_open_signup_requires_a_verified_mail_address(settings: Any) -> None:
    settings.SIGNUP, settings.ACCOUNT_EMAIL_VERIFICATION = "open", "mandatory"
    client = Client()

    sign_up(client, "nora")

    assert not is_in(client)
    link = re.search(r"http://testserver(/accounts/confirm-email/\S+)", str(mail.outbox[0].body))
    assert link
    client.post(link[1])
    assert sign_in(client, "nora").status_code == 302
    assert is_in(client)


def test_an_operator_can_sign_in_while_mail_fails(settings: Any) -> None:
    settings.SIGNUP, settings.ACCOUNT_EMAIL_VERIFICATION = "open", "mandatory"
    make("olga", is_staff=True)
    make("mia")

    assert sign_in(Client(), "olga")["Location"] == "/admin/"
    assert "confirm-email" in sign_in(Client(), "mia")["Location"]


@pytest.mark.parametrize("password", ["short", "password1234", "mia@example.com"])
def test_a_password_that_is_easily_guessed_is_refused(settings: Any, password: str) -> None:
    settings.SIGNUP = "open"

    page = sign_up(Client(), "mia", password)

    assert 'class="error"' in page
    assert 'value="mia@example.com"' in page, "what was typed is lost"
    assert not User.objects.exists()


def test_a_password_reset_link_works_once(settings: Any) -> None:
    make()
    Client().post("/accounts/password/reset/", {"email": "mia@example.com"})
    (sent,) = mail.outbox
    link = re.search(r"http://testserver(/accounts/password/reset/key/\S+)", str(sent.body))
    assert link
    client = Client()
    form = client.get(link[1], follow=True)
    new = "a wholly new sentence"

    client.post(form.request["PATH_INFO"], {"password1": new, "password2": new})

    entry = AuditEntry.objects.get()
    told = (entry.actor, entry.action, entry.target)
    assert told == ("user:mia", "user.reset_password", "user:mia")
    assert sign_in(Client(), "mia", new).status_code == 302
    assert "This link does not work" in Client().get(link[1], follow=True).content.decode()


@pytest.fixture
def _lasting_codes(settings: Any) -> None:
    """Keep codes of a second factor valid for the whole test."""
    settings.MFA_TOTP_PERIOD = 10**9


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_lasting_codes")
def test_changes_to_sign_in_data_are_audited() -> None:
    make()
    client = Client()
    sign_in(client, "mia")
    new = "a wholly new sentence"
    form = {"oldpassword": PASSWORD, "password1": new, "password2": new}
    assert client.post("/accounts/password/change/", form).status_code == 302
    client.post("/accounts/email/", {"email": "new@example.com", "action_add": ""})
    body = str(mail.outbox[-1].body)
    link = re.search(r"http://testserver(/accounts/confirm-email/\S+)", body)
    assert link
    client.post(link[1])
    client.post("/accounts/reauthenticate/", {"password": new})
    assert client.get("/accounts/2fa/totp/activate/").status_code == 200
    secret = client.session["mfa.totp.secret"]
    code = format_hotp_value(hotp_value(secret, next(iter(yield_hotp_counters_from_time()))))
    assert client.post("/accounts/2fa/totp/activate/", {"code": code}).status_code == 302
    assert client.post("/accounts/2fa/totp/deactivate/").status_code == 302

    entries = AuditEntry.objects.order_by("id")
    assert {entry.actor for entry in entries} == {"user:mia"}
    actions = [entry.action for entry in entries]
    assert actions[0] == "user.change_password"
    assert "user.change_email" in actions
    assert "second_factor.add" in actions
    assert actions[-1].startswith("second_factor.remove")
    changed = entries.get(action="user.change_email")
    assert changed.after == {"email": "new@example.com"}


def test_forms_do_not_reveal_whether_an_account_exists() -> None:
    make()
    answers = [
        Client().post("/accounts/password/reset/", {"email": address}, follow=True).content
        for address in ("mia@example.com", "stranger@example.com")
    ]

    assert answers[0] == answers[1]
    assert len(mail.outbox) == 1


def test_a_failed_mail_is_reported_to_the_user(settings: Any) -> None:
    settings.CAN_MAIL = False
    assert "sends no mail" in Client().get("/accounts/password/reset/").content.decode()
    settings.CAN_MAIL = True
    assert "sends no mail" not in Client().get("/accounts/password/reset/").content.decode()


@pytest.mark.usefixtures("_lasting_codes")
def test_a_second_factor_is_required_and_its_secret_encrypted() -> None:
    user, secret = make(), generate_totp_secret()
    stored = SecondFactors().encrypt(secret)
    Authenticator.objects.create(user=user, type="totp", data={"secret": stored})
    assert secret not in stored
    client = Client()

    assert "/accounts/2fa/authenticate/" in sign_in(client, "mia")["Location"]
    assert not is_in(client)
    counter = next(iter(yield_hotp_counters_from_time()))
    code = format_hotp_value(hotp_value(secret, counter))
    client.post("/accounts/2fa/authenticate/", {"code": code})

    assert is_in(client)


def test_key_rotation_reencrypts_second_factors() -> None:
    old, new = generate_key(), generate_key()
    with host(old):
        sealed = {"seed": data_encryption.encrypt_second_factor("seed"), "used_mask": 3}
        Authenticator.objects.create(user=make(), type="recovery_codes", data=sealed)
    with host(new, old) as ring:
        data_encryption.activate(ring.primary_id)
        assert "key_rotation" in [finding.id for finding in diagnosis.encryption()]

        (kind,) = [kind for kind in reencryption.kinds() if kind.noun == "second factor"]
        assert [batch.reencrypted for batch in kind.reencrypt()] == [1]

    with host(new):
        assert list(diagnosis.encryption()) == []
        data = Authenticator.objects.get().data
        assert data_encryption.decrypt_second_factor(data["seed"]) == "seed"
        assert data["used_mask"] == 3


@pytest.mark.parametrize("is_known", [False, True])
def test_pages_of_accounts_run_nothing_inline(is_known: bool) -> None:
    client = Client()
    if is_known:
        make()
        sign_in(client, "mia")
    pages = ["login", "signup", "password/reset", "password/reset/done", "confirm-email",
             "inactive", "email", "password/change", "2fa", "2fa/totp/activate"]  # fmt: skip

    for page in pages:
        answer = client.get(f"/accounts/{page}/", follow=True)
        html = answer.content.decode()
        assert answer.status_code == 200, page
        assert answer["Content-Security-Policy"] == STRICT
        check(html, page)
        assert "portal.css" in html, page


@pytest.mark.parametrize("place", ["email/", "password/change/", "reauthenticate/"])
def test_account_forms_use_the_portals_texts(place: str) -> None:
    client = Client()
    client.force_login(make())

    page = client.get(f"/accounts/{place}").content.decode()

    assert "placeholder=" not in page
    assert re.search(r"E-mail address</label>|Current password</label>|Password</label>", page)
    assert "Email" not in page
