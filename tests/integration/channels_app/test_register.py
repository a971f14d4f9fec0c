"""Registering as commands and pages do it: by an operator, with a reason, without a request."""

from collections.abc import Callable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app.access.principal import Principal
from channels_app.core import keys
from channels_app.core.encryption import decode_secret, new_secret
from channels_app.core.errors import BrokerError, Invalid, NotFound, PreconditionFailed
from channels_app.core.http import Precondition
from channels_app.models import ApiKey, AuditEntry, ConfigVersion, Consumer, ConsumerSecret
from channels_app.registry import (
    api_keys,
    channels,
    consumers,
    data_encryption,
    producers,
    secrets,
)
from channels_app.registry.resource import WriteResult
from tests.support.factories import ChannelFactory, ConsumerFactory, TeamFactory, secret_of
from tests.support.principals import acting

pytestmark = pytest.mark.django_db
HOOK = "http://127.0.0.1:9/hook"


def test_a_move_to_another_team_is_in_both_audit_logs() -> None:
    former, new = TeamFactory.create(slug="former"), TeamFactory.create(slug="new")
    channels.put("orders", {}, principal=acting("user:alice"))

    consumers.put("orders", "a", {"url": HOOK, "team": "former"}, principal=acting("user:alice"))
    producers.put("shop", {"team": "former"}, principal=acting("user:alice"))
    last = AuditEntry.objects.latest("id").id

    other = {"url": f"{HOOK}/other", "team": "new"}
    consumers.patch("orders", "a", other, principal=acting("user:alice", "sold"))
    producers.patch("shop", {"team": None}, principal=acting("user:alice"))

    moved = AuditEntry.objects.filter(id__gt=last)
    lost = moved.filter(team_id=former.id).order_by("id")
    assert [(entry.action, entry.target) for entry in lost] == [
        ("consumer.update", "consumer:orders/a"),
        ("producer.update", "producer:shop"),
    ]
    for entry in lost:
        # The former team may not learn the new team or address.
        assert (entry.before, entry.after) == ({"team": "former"}, None)
    got = moved.get(team_id=new.id)
    assert got.after == {"url": f"{HOOK}/other", "team": "new"}
    assert got.reason == "sold"
    assert moved.get(team_id=None).after == {"team": None}


@pytest.mark.trap("statements per row")
@pytest.mark.parametrize("tells_keys", [True, False], ids=["keys told", "as MySQL"])
def test_many_consumers_are_written_in_a_few_statements(
    tells_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not tells_keys:
        features = type(connection.features)
        monkeypatch.setattr(features, "can_return_rows_from_bulk_insert", False)
    channels = ChannelFactory.create_batch(2)
    former = ConsumerFactory.create(channel=channels[0], client_id="c0", retired=True)
    ConsumerFactory.create(channel=channels[1], client_id="c1")
    number = ConfigVersion.objects.get().number

    def put(path: str) -> list[WriteResult[Consumer]]:
        values = {"url": f"{HOOK}/{path}"}
        wanted = [
            consumers.Registration(channel.slug, f"c{i}", values)
            for channel in channels
            for i in range(50)
        ]
        with CaptureQueriesContext(connection) as queries:
            done = consumers.put_all(wanted, principal=acting("command"))
        assert len(queries) < 50
        return [one for one in done if isinstance(one, WriteResult)]

    made = put("a")

    assert [one.created for one in made].count(False) == 1
    assert made[0].row.pk == former.pk
    stored = Consumer.objects.select_related("channel").in_bulk([one.row.pk for one in made])
    for one in made:
        row = stored[one.row.pk]
        assert (row.channel.slug, row.client_id) == (one.row.channel.slug, one.row.client_id)
        assert (row.version, row.url, row.state) == (one.row.version, f"{HOOK}/a", "active")
    assert ConsumerSecret.objects.count() == 100
    assert [one.changed for one in put("b")] == [True] * 100
    assert [one.changed for one in put("b")] == [False] * 100
    assert set(Consumer.objects.values_list("url", flat=True)) == {f"{HOOK}/b"}
    assert AuditEntry.objects.filter(target__endswith="/c7").count() == 2 * len(channels)
    assert ConfigVersion.objects.get().number == number + 2


def test_each_consumer_signs_with_its_chosen_secret() -> None:
    consumers = ConsumerFactory.create_batch(2)
    names = [(it.channel.slug, it.client_id) for it in consumers]
    new, same = (decode_secret(it) for it in (new_secret(), secret_of(consumers[1])))

    done = secrets.adopt_all(
        [
            secrets.Adoption(*names[0], new),
            secrets.Adoption(names[0][0], "nobody", new),
            secrets.Adoption(*names[1], same),
        ],
        principal=acting("command"),
    )

    codes = [it.code if isinstance(it, BrokerError) else it.changed for it in done]
    assert codes == [True, "unknown_consumer", False]
    for consumer, secret, former in zip(consumers, (new, same), (1, 0), strict=True):
        row = consumer.secrets.get(expires_at=None)
        opened = data_encryption.decrypt_for_consumer(
            consumer.channel_id, consumer.client_id, bytes(row.sealed)
        )
        assert opened == secret
        assert consumer.secrets.exclude(expires_at=None).count() == former
    assert AuditEntry.objects.get(action="consumer.adopt_secret").target.endswith(names[0][1])


def test_long_actors_and_reasons_are_cut_not_refused() -> None:
    channels.put("orders", {}, principal=acting("a" * 500, "b" * 900))
    entry = AuditEntry.objects.get()
    assert (len(entry.actor), len(entry.reason)) == (200, 500)


def test_every_write_moves_the_version_by_one() -> None:
    done = register_consumer_put()
    assert done == 1
    assert consumers.pause("orders", "billing", principal=acting("x")).row.version == 2
    assert secrets.rotate("orders", "billing", {}, principal=acting("x")).row.version == 3
    patched = consumers.patch("orders", "billing", {"max_attempts": 3}, principal=acting("x"))
    assert patched.row.version == 4


def register_consumer_put() -> int:
    ChannelFactory.create(slug="orders")
    return consumers.put("orders", "billing", {"url": HOOK}, principal=acting("x")).row.version


@pytest.mark.trap("lost updates")
def test_preconditions_are_checked_under_the_lock() -> None:
    register_consumer_put()
    stale = Precondition(frozenset({7}), must_exist=True)
    with pytest.raises(PreconditionFailed):
        consumers.patch("orders", "billing", {}, principal=acting("x"), condition=stale)
    with pytest.raises(PreconditionFailed):
        consumers.retire("orders", "billing", principal=acting("x"), condition=stale)
    with pytest.raises(PreconditionFailed):
        secrets.rotate("orders", "billing", {}, principal=acting("x"), condition=stale)
    assert Consumer.objects.get().version == 1


def test_the_step_checks_the_tenant_too() -> None:
    ours, theirs = TeamFactory.create(), TeamFactory.create()
    consumer = ConsumerFactory.create(channel__slug="orders", team=ours, client_id="billing")
    stranger = Principal("x", team_id=theirs.id)
    calls: list[Callable[[], object]] = [
        lambda: consumers.put("orders", "billing", {"url": HOOK}, principal=stranger),
        lambda: consumers.patch("orders", "billing", {}, principal=stranger),
        lambda: consumers.pause("orders", "billing", principal=stranger),
        lambda: consumers.resume("orders", "billing", principal=stranger),
        lambda: consumers.retire("orders", "billing", principal=stranger),
        lambda: secrets.rotate("orders", "billing", {}, principal=stranger),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    consumer.refresh_from_db()
    assert consumer.version == 1


def test_headers_that_cannot_be_decrypted_are_kept_until_replaced() -> None:
    register_consumer_put()
    Consumer.objects.update(headers_sealed=b"\x01 sealed with a key that is gone, long enough")
    consumer = Consumer.objects.get()
    assert consumers.describe(consumer)["headers"] is None
    consumers.patch("orders", "billing", {"max_attempts": 3}, principal=acting("x"))
    consumer.refresh_from_db()
    assert bytes(consumer.headers_sealed).startswith(b"\x01 sealed")
    consumers.patch("orders", "billing", {"headers": {"X-A": "1"}}, principal=acting("x"))
    consumer.refresh_from_db()
    assert consumers.static_headers(consumer) == {"X-A": "1"}


def test_keys_of_a_team_and_of_the_installation() -> None:
    team = TeamFactory.create()
    ours = api_keys.create({"scopes": ["read"]}, principal=acting("command"), team=team.slug)
    assert (ours.row.team, ours.row.producer) == (team, None)
    for scopes, said in ((["read"], True), (["admin"], False)):
        with pytest.raises(Invalid):
            api_keys.create(
                {"scopes": scopes, "all_channels": said},
                principal=acting("command"),
                team=team.slug,
            )
    bare = api_keys.create({"scopes": ["admin"], "all_channels": True}, principal=acting("command"))
    assert (bare.row.team, bare.row.producer) == (None, None)
    parsed = keys.parse(bare.secrets[0])
    assert parsed is not None
    assert keys.matches(parsed[1], ApiKey.objects.get(key_id=parsed[0]).digest)
    assert bare.secrets[0] not in repr(bare)
    for owner in ({"team": "nobody"}, {"producer": "nobody"}):
        wishes = {"all_channels": "producer" in owner}
        with pytest.raises(NotFound):
            api_keys.create(wishes, principal=acting("command"), **owner)
