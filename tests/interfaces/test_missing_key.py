"""A process without an encryption key: requests that need the key get an error that says so.

Nothing is half written, and no value that cannot be decrypted here is replaced.
"""

import hmac
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from allauth.mfa.totp.internal.auth import (
    TOTP,
    format_hotp_value,
    hotp_value,
    yield_hotp_counters_from_time,
)
from django.apps import apps
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from channels_app.core.encryption import Keyring, generate_key
from channels_app.core.values import MASK
from channels_app.models import Consumer, Schedule
from channels_app.registry import consumers, data_encryption, inbound_addresses
from tests.support import console, people
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    ScheduleFactory,
    TeamFactory,
)
from tests.support.keys import host
from tests.support.principals import acting
from tests.support.snapshot import undone

pytestmark = pytest.mark.django_db
OLD, NEW = generate_key(), generate_key()
OLD_ID, NEW_ID = (Keyring.from_texts([key]).primary_id for key in (OLD, NEW))


def other(keys: list[str]) -> str:
    """Return the id of the missing key."""
    return NEW_ID if keys == [OLD] else OLD_ID


URL = "http://127.0.0.1:9/hook"
SIGNATURE = {"preset": "meta-x-hub-256", "secret": "s3cret"}
ACK = {"mode": "callback", "correlation": {"preset": "whatsapp-cloud", "signature": SIGNATURE}}
PASSWORD = "correct horse battery"
SIGN_IN = {"login": "mia", "password": PASSWORD}
LOGIN, AUTHENTICATE = "/accounts/login/", "/accounts/2fa/authenticate/"
ACTIVATE = "/accounts/2fa/totp/activate/"
CONSUMER = {"url": URL, "headers": {"X-Token": "t0ken"}, "ack": ACK}


@pytest.fixture(autouse=True)
def _hosts() -> None:
    """Encrypt the rows with OLD, then let NEW encrypt from now on."""
    with host(OLD):
        channel = ChannelFactory.create(slug="orders", external=True)
        consumers.put("orders", "crm", CONSUMER, principal=acting("test"))
        ConsumerFactory.create(
            channel=channel, client_id="hook", team=TeamFactory.create(slug="acme")
        )
        ScheduleFactory.create(channel=channel, name="daily")
    with host(NEW, OLD) as both:
        data_encryption.activate(both.primary_id)


@pytest.fixture
def _lasting_codes(settings: Any) -> None:
    """Keep codes of a second factor valid for the whole test."""
    settings.MFA_TOTP_PERIOD = 10**9


@contextmanager
def unchanged() -> Iterator[None]:
    """Check that the block changes no row of the broker."""
    before = _rows()
    yield
    assert _rows() == before


def _rows() -> dict[str, list[dict[str, Any]]]:
    models = [
        model
        for name in ("channels_app", "mfa")
        for model in apps.get_app_config(name).get_models()
    ]
    rows = {
        model.__name__: list(model._default_manager.order_by("pk").values()) for model in models
    }
    for key in rows["ApiKey"]:
        key.pop("last_used_at")
    return rows


def said(answer: Any) -> str:
    """Return a response without its tags."""
    return re.sub(r"<[^>]+>", "", answer.content.decode())


def crm() -> Consumer:
    return Consumer.objects.get(client_id="crm")


def untouched(client: Client, url: str) -> dict[str, Any]:
    """Return the values that an unchanged form of the console would send."""
    form = client.get(url).context["adminform"].form
    values = {name: form[name].value() for name in form.fields}
    return {name: value for name, value in values.items() if value not in (None, False)}


# -- the console -------------------------------------------------------------------------------


def new_consumer(client: Client) -> tuple[str, dict[str, Any]]:
    url = reverse("admin:channels_app_consumer_add")
    channel = crm().channel_id
    return url, untouched(client, url) | {"channel": channel, "client_id": "new", "url": URL}


def new_headers(client: Client) -> tuple[str, dict[str, Any]]:
    url = console.page_url(crm())
    return url, untouched(client, url) | {"headers": '{"X-Token": "another"}'}


def new_acknowledgement(client: Client) -> tuple[str, dict[str, Any]]:
    url = console.page_url(crm())
    return url, untouched(client, url) | {"ack": json.dumps(ACK).replace("s3cret", "another")}


def new_schedule(client: Client) -> tuple[str, dict[str, Any]]:
    url = reverse("admin:channels_app_schedule_add")
    own = {"channel": crm().channel_id, "name": "hourly", "cron": "0 * * * *", "body": "tick"}
    return url, untouched(client, url) | own


@pytest.mark.trap("a form without the encryption key")
@pytest.mark.parametrize("form", [new_consumer, new_headers, new_acknowledgement, new_schedule])
def test_a_form_of_the_console_says_which_key_is_missing(
    form: Callable[[Client], tuple[str, dict[str, Any]]],
) -> None:
    operator = console.operator()
    with host(OLD):
        url, values = form(operator)
        with unchanged():
            answer = operator.post(url, values)
        assert answer.status_code == 200
        shown = answer.context["adminform"].form
        (error,) = shown.non_field_errors()
        assert f"does not have the encryption key {NEW_ID}. Nothing was saved." in error
        typed = [name for name in ("client_id", "cron", "url") if name in values]
        assert [shown[name].value() for name in typed] == [values[name] for name in typed]
    with host(NEW, OLD):
        before = _rows()
        operator.post(url, values)
        assert _rows() != before


@pytest.mark.trap("a form without the encryption key")
def test_a_button_of_the_console_says_which_key_is_missing() -> None:
    operator = console.operator()
    values = {"_form_submitted": "True", "overlap_s": "60", "reason": "x"}
    for name, row, keys in (
        ("consumer_rotate", crm(), [OLD]),
        ("consumer_renew", crm(), [OLD]),
        # It could encrypt a new address but would lose the provider's signing secret.
        ("consumer_renew", crm(), [NEW]),
        ("schedule_run_it", Schedule.objects.get(), [OLD]),
        ("schedule_run_it", Schedule.objects.get(), [NEW]),
    ):
        with host(*keys):
            with unchanged():
                url = reverse(f"admin:channels_app_{name}", args=[row.pk])
                assert operator.post(url, values).headers["HX-Redirect"]
            (told,) = console.told(operator)
        assert f"does not have the encryption key {other(keys)}. Nothing was saved." in told, name


# -- the portal and the accounts ---------------------------------------------------------------


@pytest.mark.trap("a form without the encryption key")
def test_a_page_of_the_portal_says_which_key_is_missing() -> None:
    owner = people.person("olga", Consumer.objects.get(client_id="hook").team, "owner")
    pages: list[tuple[str, dict[str, str], list[str]]] = [
        ("-/new/orders/", {"client_id": "new", "url": URL}, [OLD]),
        ("orders/hook/secret/", {"overlap_s": "3600"}, [OLD]),
        ("orders/hook/test/", {}, [NEW]),
    ]
    for path, values, keys in pages:
        with host(*keys), unchanged():
            answer = owner.post(f"/portal/acme/webhooks/{path}", values)
        assert answer.status_code in (200, 422, 503)
        sentence = f"does not have the encryption key {other(keys)}. Nothing was saved."
        assert sentence in said(answer), path


@pytest.mark.trap("a form without the encryption key")
@pytest.mark.usefixtures("_lasting_codes")
def test_without_the_key_second_factors_are_unavailable() -> None:
    """Its forms are not the broker's own: a middleware responds for them."""
    mia = User.objects.create_user("mia", "mia@example.com", PASSWORD)
    client, door = Client(), Client()
    assert client.post(LOGIN, SIGN_IN).status_code == 302
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    client.get(ACTIVATE)
    secret = client.session["mfa.totp.secret"]
    code = format_hotp_value(hotp_value(secret, next(iter(yield_hotp_counters_from_time()))))
    with host(OLD), unchanged():
        assert_page_says(client.post(ACTIVATE, {"code": code}), NEW_ID)
    with host(NEW, OLD):
        TOTP.activate(mia, secret)
        assert door.post(LOGIN, SIGN_IN)["Location"].startswith(AUTHENTICATE)
    with host(OLD), unchanged():
        assert_page_says(door.post(AUTHENTICATE, {"code": code}), NEW_ID)
    with host(NEW, OLD):
        assert door.post(AUTHENTICATE, {"code": code}).status_code == 302


def assert_page_says(answer: Any, key_id: str) -> None:
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert f"does not have the encryption key {key_id}. Nothing was saved." in said(answer)


# -- the API -----------------------------------------------------------------------------------


@pytest.mark.trap("a form without the encryption key")
def test_the_api_answers_503_and_changes_nothing() -> None:
    admin = Api(ApiKeyFactory.create(admin=True))
    requests: list[tuple[str, str, dict[str, Any], list[str]]] = [
        ("PUT", "consumers/new", {"url": URL}, [OLD]),
        ("PATCH", "consumers/crm", {"headers": {"X-Token": "another"}}, [OLD]),
        ("PATCH", "consumers/crm", {"headers": {"X-Token": MASK, "X-More": "1"}}, [NEW]),
        ("PATCH", "consumers/crm", {"ack": ACK}, [NEW]),
        ("PUT", "consumers/crm", CONSUMER, [NEW]),
        ("POST", "consumers/crm/secrets", {}, [OLD]),
        ("POST", "consumers/crm/inbound", {}, [NEW]),
        ("POST", "consumers/crm/test", {}, [NEW]),
        ("PUT", "schedules/hourly", {"every_ms": 1000, "body": "tick"}, [OLD]),
        ("PATCH", "schedules/daily", {"limit": 5}, [NEW]),
        ("POST", "schedules/daily/run", {}, [NEW]),
    ]
    for method, path, body, keys in requests:
        with undone():
            with host(*keys):
                with unchanged():
                    answer = admin.call(method, f"channels/orders/{path}", body)
                assert (answer.status, answer.json["code"]) == (503, "key_missing"), path
                assert answer.header("Retry-After")
            with host(NEW, OLD):
                again = admin.call(method, f"channels/orders/{path}", body)
            assert again.status in (200, 201, 202), path


def test_settings_that_need_no_key_can_be_changed_without_it() -> None:
    with host(NEW, OLD):
        known = inbound_addresses.load(crm())
    with host(NEW):
        consumers.patch("orders", "crm", {"description": "x"}, principal=acting("test"))
    with host(NEW, OLD):
        assert inbound_addresses.load(crm()) == known
        assert consumers.static_headers(crm()) == {"X-Token": "t0ken"}


@pytest.mark.trap("a form without the encryption key")
def test_a_provider_gets_503_with_retry_after() -> None:
    """403 would be final, and the acknowledgement lost."""
    with host(OLD):
        address = inbound_addresses.url(crm())
    assert address is not None
    body = b"{}"
    signature = f"sha256={hmac.new(b's3cret', body, 'sha256').hexdigest()}"
    for keys, status in (([NEW], 503), ([NEW, OLD], 200)):
        with host(*keys):
            path = "/" + address.split("/", 3)[3]
            answer = Api().post(path, {}, X_Hub_Signature_256=signature)
            assert answer.status == status
