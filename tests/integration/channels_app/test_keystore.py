"""The database determines for all processes which key encrypts and which ones sign."""

from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from channels_app.core.encryption import KeyMissing, generate_key
from channels_app.core.errors import NotFound
from channels_app.models import SigningKey
from channels_app.registry import data_encryption
from delivery.acks import callbacks
from tests.support.keys import host

pytestmark = [pytest.mark.django_db, pytest.mark.mysql]
OLD, NEW = generate_key(), generate_key()


def made_earlier(by: timedelta) -> None:
    """Make all signing keys older."""
    for row in SigningKey.objects.all():
        SigningKey.objects.filter(id=row.id).update(created_at=row.created_at - by)
    data_encryption.forget()


def test_a_new_key_encrypts_nothing_until_it_is_active() -> None:
    with host(OLD) as old:
        assert data_encryption.encrypt_body(1, b"first", encrypt=True)[1] == old.primary_id
    with host(NEW, OLD) as both:
        assert data_encryption.encrypt_body(1, b"body", encrypt=True)[1] == old.primary_id
        data_encryption.activate(both.primary_id)
        data, key_id = data_encryption.encrypt_body(1, b"body", encrypt=True)
        assert key_id == both.primary_id
    with host(NEW):
        assert not data_encryption.refusal()
        assert data_encryption.decrypt_body(1, data) == b"body"


def test_a_key_that_cannot_decrypt_the_canary_is_refused() -> None:
    with host(OLD) as old:
        data_encryption.encrypt_body(1, b"body", encrypt=True)
    with host(NEW) as wrong:
        assert old.primary_id in data_encryption.refusal()
        assert wrong.primary_id in data_encryption.refusal()
        with pytest.raises(KeyMissing, match=old.primary_id):
            data_encryption.encrypt_body(2, b"body", encrypt=True)
    with host(OLD):
        SigningKey.objects.update(sealed=b"\x01" + bytes(60))
        data_encryption.forget()
        assert data_encryption.refusal()


def test_checking_keys_writes_nothing() -> None:
    with host(OLD) as old:
        assert not data_encryption.refusal()
        assert data_encryption.encrypting_key_id() == old.primary_id
        assert not SigningKey.objects.exists()


class Undone(Exception):
    """Raised to roll a transaction back."""


def test_a_rolled_back_key_is_not_cached() -> None:
    with host(OLD):
        with suppress(Undone), transaction.atomic():
            undone = data_encryption.signing_key(b"")
            assert data_encryption.signing_key(b"") == undone
            raise Undone
        assert not SigningKey.objects.exists()
        assert data_encryption.signing_key(b"") != undone
        assert SigningKey.objects.exists()


@pytest.mark.trap("statements per row")
def test_a_transaction_that_creates_the_first_key_reads_it_once() -> None:
    with host(OLD), transaction.atomic(), CaptureQueriesContext(connection) as queries:
        for number in range(20):
            data_encryption.encrypt_body(number, b"body", encrypt=True)
    assert len(queries) < 10


def test_configured_keys_replace_the_derived_one() -> None:
    with host() as derived:
        data, key_id = data_encryption.encrypt_body(1, b"body", encrypt=True)
        assert key_id == derived.primary_id
    with host(NEW) as both:
        assert data_encryption.decrypt_body(1, data) == b"body"
        data_encryption.activate(both.primary_id)
    with host(NEW, secret="another secret " * 4):
        assert not data_encryption.refusal()


@pytest.mark.trap("URLs invalidated by a new secret")
def test_acknowledgement_urls_survive_a_change_of_secret_and_encryption_keys() -> None:
    with host(OLD):
        token = callbacks.token(7)
    with host(OLD, secret="another secret " * 4):
        assert callbacks.opened(token) == 7
    with host(NEW, OLD) as both:
        data_encryption.activate(both.primary_id)
        assert callbacks.opened(token) == 7
    with host(NEW, secret="a third secret " * 4):
        assert callbacks.opened(token) == 7


def test_without_configured_keys_a_previous_secret_key_still_decrypts() -> None:
    with host(secret="first secret " * 5):
        token = callbacks.token(7)
    with host(secret="second secret " * 5):
        assert "SECRET_KEY_FALLBACKS" in data_encryption.refusal()
    with host(secret="second secret " * 5, former=["first secret " * 5]) as both:
        assert callbacks.opened(token) == 7
        data_encryption.activate(both.primary_id)
    with host(secret="second secret " * 5):
        assert callbacks.opened(token) == 7


def test_a_new_signing_key_is_used_once_all_processes_have_read_it() -> None:
    with host(OLD):
        first = callbacks.token(7)
        made_earlier(timedelta(days=100))
    with host(NEW, OLD) as both:
        data_encryption.activate(both.primary_id)
        assert callbacks.token(7) == first
        made_earlier(data_encryption.SIGNS_AFTER)
        second = callbacks.token(7)
        assert second != first
        assert callbacks.opened(first) == callbacks.opened(second) == 7


def test_a_previous_signing_key_ends_with_its_overlap() -> None:
    with host(OLD):
        first = callbacks.token(7)
    with host(NEW, OLD) as both:
        data_encryption.activate(both.primary_id)
        made_earlier(data_encryption.OVERLAP - timedelta(hours=1))
        assert callbacks.opened(first) == 7
        made_earlier(timedelta(hours=1))
        with pytest.raises(NotFound):
            callbacks.opened(first)
    with host(OLD, NEW) as both:
        data_encryption.activate(both.primary_id)
        assert SigningKey.objects.count() == 2


def test_cached_keys_are_refreshed() -> None:
    with host(NEW, OLD) as both, pytest.MonkeyPatch.context() as patched:
        data_encryption.signing_key(b"")
        assert data_encryption.encrypting_key_id() == both.primary_id
        old_id = next(iter(both.ids - {both.primary_id}))
        other = both.encrypting_with(old_id)
        key = SigningKey.objects.get()
        sealed = other.encrypt(both.open(bytes(key.sealed), b"signing key:1"), b"signing key:1")
        SigningKey.objects.update(sealed=sealed, key_id=old_id)
        assert data_encryption.encrypting_key_id() == both.primary_id
        patched.setattr(data_encryption, "FRESH_S", -1.0)
        assert data_encryption.encrypting_key_id() == old_id
