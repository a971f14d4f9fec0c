"""API keys: only a live key with the right scope and grant is accepted; a revoked one is not."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app.core import keys
from channels_app.core.encryption import Unreadable, generate_key
from channels_app.core.errors import KeyUnavailable
from channels_app.models import ApiKey, AuditEntry, Message
from channels_app.registry import api_keys, authentication
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ProducerFactory,
    TeamFactory,
    bearer,
    text_of,
)
from tests.support.keys import host
from tests.support.principals import acting

URL = "channels/orders"


@pytest.fixture(autouse=True)
def _channel(db: None) -> None:
    ChannelFactory.create(slug="orders")


def status(authorization: str) -> int:
    answer = Api().get(URL, Authorization=authorization)
    if answer.status == 401:
        assert answer.header("WWW-Authenticate") == 'Bearer realm="hookstation"'
        assert answer.is_problem
    return answer.status


def test_only_the_exact_key_authenticates(nobody: Api) -> None:
    text = text_of(ApiKeyFactory.create(scopes=["read"]))
    head, _, secret = text.rpartition("_")
    assert nobody.get(URL).json["code"] == "not_authenticated"
    assert status(f"Bearer {text}") == 200
    assert status(f"bearer  {text} ") == 200
    other = keys.generate().text
    for wrong in [
        text,
        f"Basic {text}",
        f"Bearer {text.upper()}",
        f"Bearer {text}a",
        f"Bearer {text[:-1]}",
        f"Bearer {head}_{other.rpartition('_')[2]}",
        f"Bearer {other}",
        f"Bearer {secret}",
        "Bearer",
        "",
        "Bearer \u00e9",
        "Bearer hsk_%_%",
    ]:
        assert status(wrong) == 401, wrong


def test_an_expired_or_revoked_key_says_so() -> None:
    for trait, code in [("expired", "expired_key"), ("revoked", "revoked_key")]:
        answer = Api(ApiKeyFactory.create(admin=True, **{trait: True})).get(URL)
        assert (answer.status, answer.json["code"]) == (401, code)
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert Api(ApiKeyFactory.create(expires_at=soon)).get(URL).status == 200


@pytest.mark.trap("a revoked key still works in other processes")
def test_revoking_works_at_once() -> None:
    key = ApiKeyFactory.create()
    api = Api(key)
    assert api.get(URL).status == 200
    key.revoked_at = datetime.now(UTC)
    key.save()
    assert api.get(URL).json["code"] == "revoked_key"
    key.delete()
    assert api.get(URL).json["code"] == "bad_key"


@pytest.mark.trap("two timeouts in a row")
def test_recording_a_keys_use_does_not_delay_requests() -> None:
    key = ApiKeyFactory.create()
    header = bearer(key)
    authentication.identify(header)  # fills the configuration cache
    authentication._noted.clear()
    authentication._uses.clear()
    with CaptureQueriesContext(connection) as captured:
        assert authentication.identify(header) is not None
    assert [it["sql"] for it in captured if not it["sql"].startswith("SELECT")] == []
    assert authentication.write_uses() == 1
    key.refresh_from_db()
    assert key.last_used_at is not None


def test_last_use_is_recorded_at_most_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ApiKeyFactory.create()
    api = Api(key)

    def use() -> datetime:
        api.get(URL)
        authentication.write_uses()
        key.refresh_from_db()
        assert key.last_used_at is not None
        return key.last_used_at

    first, version = use(), key.version
    assert (use(), key.version) == (first, version)
    # Another process, whose memory is empty, reads the time that this one stored.
    monkeypatch.setattr(authentication, "_noted", {})
    assert use() == first
    ApiKey.objects.filter(id=key.id).update(last_used_at=first - timedelta(minutes=2))
    monkeypatch.setattr(authentication, "_noted", {})
    assert use() >= first


def test_a_scope_permits_only_its_operations() -> None:
    reader = Api(ApiKeyFactory.create(scopes=["read"]))
    answer = reader.post(f"{URL}/messages", b"x")
    assert (answer.status, answer.json["code"]) == (403, "missing_scope")
    assert "publish" in answer.json["detail"]
    assert answer.is_problem


def test_admin_permits_every_operation(admin: Api) -> None:
    assert admin.post(f"{URL}/messages", b"x").status == 202
    assert Message.objects.get().producer is None
    granted = Api(ApiKeyFactory.create(scopes=["admin"], channels=["other"]))
    assert granted.post(f"{URL}/messages", b"x").status == 202


@pytest.mark.seed("S0-11")
def test_a_key_for_one_channel_is_403_on_another() -> None:
    api = Api(ApiKeyFactory.create(channels=["orders"]))
    ChannelFactory.create(slug="invoices")
    assert api.post(f"{URL}/messages", b"x").status == 202
    for slug in ("invoices", "unknown"):
        answer = api.post(f"channels/{slug}/messages", b"x")
        assert (answer.status, answer.json["code"]) == (403, "no_grant")


def test_keys_of_a_disabled_producer_are_refused() -> None:
    owner = ProducerFactory.create()
    api = Api(ApiKeyFactory.create(producer=owner))
    assert api.get(URL).status == 200
    owner.disabled = True
    owner.save()
    assert api.get(URL).json["code"] == "producer_disabled"
    assert api.post(f"{URL}/messages", b"x").json["code"] == "producer_disabled"
    assert not Message.objects.exists()


def test_a_team_publishes_with_its_own_key() -> None:
    api = Api(ApiKeyFactory.create(team=TeamFactory.create(), channels=["orders"]))
    assert api.post(f"{URL}/messages", b"x").status == 202


def signing(**wishes: object) -> tuple[ApiKey, api_keys.Shown]:
    """Create a key for SQS clients; return it with what its owner is shown."""
    done = api_keys.create(
        {"all_channels": True, "sigv4": True, **wishes}, principal=acting("test")
    )
    return done.row, api_keys.Shown(*done.secrets)


def verified(shown: api_keys.Shown) -> str | None:
    """Return the secret with which a signature of this access key id is verified."""
    assert shown.access_key_id is not None
    found = authentication.sigv4_secret(shown.access_key_id)
    return found[1] if found else None


def test_a_sigv4_secret_is_found_until_its_key_is_revoked_or_has_expired() -> None:
    key, shown = signing()
    assert verified(shown) == shown.secret_access_key
    with CaptureQueriesContext(connection) as queries:
        verified(shown)
    assert not any("apikey" in query["sql"] for query in queries), "opened once"

    api_keys.revoke(key.key_id, principal=acting("test"))
    assert verified(shown) is None
    expired, shown = signing()
    expired.expires_at = datetime.now(UTC) - timedelta(seconds=60)
    expired.save()
    assert verified(shown) is None


def test_a_key_without_sigv4_and_an_unknown_one_have_no_secret() -> None:
    plain = ApiKeyFactory.create()
    for access_key_id in (
        keys.access_key_id(plain.key_id),
        keys.access_key_id(keys.generate().key_id),
        text_of(plain),
        "",
    ):
        assert authentication.sigv4_secret(access_key_id) is None


def test_rotating_gives_a_new_pair_beside_the_old_one() -> None:
    key, old = signing()

    new = api_keys.Shown(*api_keys.rotate(key.key_id, {}, principal=acting("test")).secrets)

    assert new.access_key_id != old.access_key_id
    assert (verified(old), verified(new)) == (old.secret_access_key, new.secret_access_key)


def test_a_sigv4_secret_is_encrypted_bound_to_its_key_and_in_no_audit_entry() -> None:
    key, shown = signing()
    _, other = signing()
    assert shown.secret_access_key is not None
    assert shown.secret_access_key.encode() not in bytes(key.sigv4_sealed)
    for entry in AuditEntry.objects.all():
        assert shown.secret_access_key not in json.dumps([entry.before, entry.after])

    stolen = ApiKey.objects.get(key_id=keys.parse_access_key_id(other.access_key_id or ""))
    stolen.sigv4_sealed = key.sigv4_sealed
    stolen.save()
    with pytest.raises(Unreadable):
        verified(other)


def test_a_process_without_the_encryption_key_says_so_of_a_sigv4_secret() -> None:
    old, new = generate_key(), generate_key()
    with host(old):
        _, shown = signing()
        assert verified(shown) == shown.secret_access_key
    with host(new), pytest.raises(KeyUnavailable):
        verified(shown)
