"""Registering as commands and pages do it: by an operator, with a reason, and no request around."""

from collections.abc import Callable
from typing import Any

import pytest

from channels_app.errors import Conflict, Invalid, NotFound, Stale
from channels_app.models import ApiKey, AuditEntry, Consumer, DirectoryVersion
from channels_app.rules import keys
from channels_app.rules.conditions import Condition
from channels_app.rules.registered import Registered
from channels_app.rules.tenants import Tenant
from channels_app.steps import (
    issue_key,
    register_channel,
    register_consumer,
    register_event_type,
    register_producer,
    rotate_secret,
    switch_consumer,
)
from tests.support.factories import ChannelFactory, ConsumerFactory, TeamFactory

pytestmark = pytest.mark.django_db
HOOK = "http://127.0.0.1:9/hook"


def test_the_same_values_twice_change_nothing_anywhere() -> None:
    def apply() -> list[bool]:
        done: list[Registered[Any]] = [
            register_channel.put("orders", {"default_retry": [1, 2.5]}, actor="command"),
            register_event_type.put("orders", "a.b", {"schema": {"const": 1}}, actor="command"),
            register_producer.put("shop", {"rate_limit": {"per_second": 5}}, actor="command"),
            register_consumer.put(
                "orders",
                "billing",
                {
                    "url": HOOK,
                    "retry": {"base": 1, "factor": 2, "cap": 60},
                    "rate_limit": {"per_second": 0.5, "burst": 2},
                    "headers": {"X-Key": "secret"},
                    "signing": ["v1a", "v1"],
                },
                actor="command",
            ),
        ]
        return [one.changed for one in done]

    assert apply() == [True] * 4
    number = DirectoryVersion.objects.get().number
    entries = AuditEntry.objects.count()
    assert apply() == [False] * 4
    assert DirectoryVersion.objects.get().number == number
    assert AuditEntry.objects.count() == entries == 4


def test_a_change_is_audited_with_what_differs_and_why() -> None:
    register_channel.put("orders", {}, actor="user:alice")
    register_channel.patch("orders", {"paused": True}, actor="user:bob", reason="incident 7")
    entry = AuditEntry.objects.latest("id")
    assert (entry.actor, entry.action, entry.target, entry.reason) == (
        "user:bob",
        "channel.update",
        "channel:orders",
        "incident 7",
    )
    assert (entry.before, entry.after) == ({"paused": False}, {"paused": True})


def test_what_moves_to_another_team_is_in_the_books_of_both() -> None:
    former, new = TeamFactory.create(slug="former"), TeamFactory.create(slug="new")
    register_channel.put("orders", {}, actor="user:alice")

    register_consumer.put("orders", "a", {"url": HOOK, "team": "former"}, actor="user:alice")
    register_producer.put("shop", {"team": "former"}, actor="user:alice")
    last = AuditEntry.objects.latest("id").id

    other = {"url": f"{HOOK}/other", "team": "new"}
    register_consumer.patch("orders", "a", other, actor="user:alice", reason="sold")
    register_producer.patch("shop", {"team": None}, actor="user:alice")

    moved = AuditEntry.objects.filter(id__gt=last)
    lost = moved.filter(team_id=former.id).order_by("id")
    assert [(entry.action, entry.target) for entry in lost] == [
        ("consumer.update", "consumer:orders/a"),
        ("producer.update", "producer:shop"),
    ]
    for entry in lost:
        # Where it went, and to what address, is no longer theirs to know.
        assert (entry.before, entry.after) == ({"team": "former"}, None)
    got = moved.get(team_id=new.id)
    assert got.after == {"url": f"{HOOK}/other", "team": "new"}
    assert got.reason == "sold"
    assert moved.get(team_id=None).after == {"team": None}


def test_long_actors_and_reasons_are_cut_not_refused() -> None:
    register_channel.put("orders", {}, actor="a" * 500, reason="b" * 900)
    entry = AuditEntry.objects.get()
    assert (len(entry.actor), len(entry.reason)) == (200, 500)


def test_every_write_moves_the_version_by_one() -> None:
    done = register_consumer_put()
    assert done == 1
    assert switch_consumer.pause("orders", "billing", actor="x").row.version == 2
    assert rotate_secret.rotate("orders", "billing", {}, actor="x").row.version == 3
    patched = register_consumer.patch("orders", "billing", {"max_attempts": 3}, actor="x")
    assert patched.row.version == 4


def register_consumer_put() -> int:
    ChannelFactory.create(slug="orders")
    return register_consumer.put("orders", "billing", {"url": HOOK}, actor="x").row.version


@pytest.mark.trap("the second of two writers wins unnoticed")
def test_conditions_are_judged_under_the_lock() -> None:
    register_consumer_put()
    stale = Condition(frozenset({7}), must_exist=True)
    with pytest.raises(Stale):
        register_consumer.patch("orders", "billing", {}, actor="x", condition=stale)
    with pytest.raises(Stale):
        switch_consumer.retire("orders", "billing", actor="x", condition=stale)
    with pytest.raises(Stale):
        rotate_secret.rotate("orders", "billing", {}, actor="x", condition=stale)
    assert Consumer.objects.get().version == 1


def test_the_tenant_is_judged_by_the_step_too() -> None:
    ours, theirs = TeamFactory.create(), TeamFactory.create()
    consumer = ConsumerFactory.create(channel__slug="orders", team=ours, client_id="billing")
    stranger = Tenant(theirs.id)
    calls: list[Callable[[], object]] = [
        lambda: register_consumer.put(
            "orders", "billing", {"url": HOOK}, actor="x", tenant=stranger
        ),
        lambda: register_consumer.patch("orders", "billing", {}, actor="x", tenant=stranger),
        lambda: switch_consumer.pause("orders", "billing", actor="x", tenant=stranger),
        lambda: switch_consumer.resume("orders", "billing", actor="x", tenant=stranger),
        lambda: switch_consumer.retire("orders", "billing", actor="x", tenant=stranger),
        lambda: rotate_secret.rotate("orders", "billing", {}, actor="x", tenant=stranger),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    consumer.refresh_from_db()
    assert consumer.version == 1


def test_headers_whose_key_is_lost_are_kept_until_they_are_written_again() -> None:
    register_consumer_put()
    Consumer.objects.update(headers_sealed=b"\x01 sealed with a key that is gone, long enough")
    consumer = Consumer.objects.get()
    assert register_consumer.describe(consumer)["headers"] is None
    register_consumer.patch("orders", "billing", {"max_attempts": 3}, actor="x")
    consumer.refresh_from_db()
    assert bytes(consumer.headers_sealed).startswith(b"\x01 sealed")
    register_consumer.patch("orders", "billing", {"headers": {"X-A": "1"}}, actor="x")
    consumer.refresh_from_db()
    assert register_consumer.static_headers(consumer) == {"X-A": "1"}


def test_pausing_what_is_disabled_is_a_conflict() -> None:
    ConsumerFactory.create(channel__slug="orders", client_id="billing", disabled=True)
    with pytest.raises(Conflict):
        switch_consumer.pause("orders", "billing", actor="x")


def test_keys_of_a_team_and_of_the_installation() -> None:
    team = TeamFactory.create()
    ours = issue_key.issue({"scopes": ["read"]}, actor="command", team=team.slug)
    assert (ours.row.team, ours.row.producer) == (team, None)
    for scopes, said in ((["read"], True), (["admin"], False)):
        with pytest.raises(Invalid):
            issue_key.issue(
                {"scopes": scopes, "all_channels": said}, actor="command", team=team.slug
            )
    bare = issue_key.issue({"scopes": ["admin"], "all_channels": True}, actor="command")
    assert (bare.row.team, bare.row.producer) == (None, None)
    parsed = keys.parse(bare.secrets[0])
    assert parsed is not None
    assert keys.matches(parsed[1], ApiKey.objects.get(key_id=parsed[0]).digest)
    assert bare.secrets[0] not in repr(bare)
    for owner in ({"team": "nobody"}, {"producer": "nobody"}):
        wishes = {"all_channels": "producer" in owner}
        with pytest.raises(NotFound):
            issue_key.issue(wishes, actor="command", **owner)


@pytest.mark.parametrize(
    "values", [None, [], "text", {"paused": 1}, {"nonsense": 1}, {"max_body_bytes": float("nan")}]
)
def test_values_that_are_none_are_invalid(values: object) -> None:
    with pytest.raises(Invalid) as refusal:
        register_channel.put("orders", values, actor="x")  # type: ignore[arg-type]  # the fault that is meant
    assert refusal.value.code == "invalid_fields"
    assert refusal.value.faults
