"""Payloads are read once for a message, large ones only when needed, and few are cached."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from channels_app.database import raw
from channels_app.models import Message, MessageBody
from channels_app.registry import data_encryption
from delivery.transport import payloads
from delivery.transport.payloads import SMALL_BYTES, PayloadCache
from tests.support.factories import MessageFactory

pytestmark = pytest.mark.django_db
Queries = Callable[[int], AbstractContextManager[Any]]


def a_message(body: bytes, consumer_count: int = 1, *, encrypt: bool = False, **values: Any) -> int:
    values |= {"consumer_count": consumer_count, "channel__encrypt_bodies": encrypt}
    message: Message = MessageFactory.create(body=body, **values)
    return message.id


def test_payload_has_the_published_content(django_assert_num_queries: Queries) -> None:
    plain = a_message(bytes(range(256)), content_type="text/x", headers={"X-A": 'caf\xe9 \u2014 "'})
    sealed = a_message(b"secret", encrypt=True)

    with django_assert_num_queries(1):
        found = PayloadCache().load([plain, sealed, plain])

    assert found[plain].body == bytes(range(256))
    assert found[plain].content_type == "text/x"
    assert found[plain].headers == {"X-A": 'caf\xe9 \u2014 "'}
    assert (found[sealed].body, found[sealed].size) == (b"secret", 6)
    assert payloads.load([plain, sealed]) == found


def test_a_cached_payload_is_not_read_again(django_assert_num_queries: Queries) -> None:
    once, twice, never = a_message(b"1"), a_message(b"2"), a_message(b"3")
    large = a_message(b"x" * (SMALL_BYTES + 1))
    cache = PayloadCache()
    for _ in range(2):  # a cached payload keeps its remaining uses
        cache.add(
            raw.read(*payloads.select_payloads([once, twice, never, large])),
            {once: 1, twice: 2, large: 1},
        )
    with django_assert_num_queries(0):
        assert {key: payload.body for key, payload in cache.load([once, twice]).items()} == {
            once: b"1",
            twice: b"2",
        }
        assert cache.load([twice])[twice].body == b"2"
    with django_assert_num_queries(1):
        assert cache.load([once, twice, never, large])[large].is_left


def test_an_unavailable_payload_has_a_reason() -> None:
    moved, bare = a_message(b"1", encrypt=True), a_message(b"2")
    MessageBody.objects.filter(message_id=moved).update(
        data=data_encryption.encrypt_body(bare, b"1", encrypt=True)[0]
    )
    MessageBody.objects.filter(message_id=bare).delete()

    found = PayloadCache().load([moved, bare, 12345])

    assert found.keys() == {moved, bare}
    assert "changed or damaged, or belongs to another row" in found[moved].error
    assert found[bare].error == "The stored body is missing."
    assert {payload.body for payload in found.values()} == {None}
    assert not any(payload.is_left for payload in found.values())


def test_large_bodies_are_loaded_on_demand() -> None:
    large, small = a_message(b"x" * (SMALL_BYTES + 1), 5), a_message(b"x" * SMALL_BYTES)

    found = PayloadCache().load([large, small])

    assert (found[large].is_left, found[large].size) == (True, SMALL_BYTES + 1)
    assert (found[small].is_left, found[small].size) == (False, SMALL_BYTES)
    assert payloads.load([large])[large].body == b"x" * (SMALL_BYTES + 1)


def test_a_payload_is_cached_until_all_its_consumers_got_it(
    django_assert_num_queries: Queries,
) -> None:
    cache, message_id = PayloadCache(), a_message(b"for four", 4)

    with django_assert_num_queries(1):
        first = cache.load([message_id])
    with django_assert_num_queries(0):
        second, last = cache.load([message_id, message_id]), cache.load([message_id])
    with django_assert_num_queries(1):
        again = cache.load([message_id] * 4)
    with django_assert_num_queries(1):
        cache.load([message_id])

    assert first == second == last == again


def test_the_payload_cache_is_bounded_by_bytes(django_assert_num_queries: Queries) -> None:
    cache = PayloadCache(kept_bytes=100)
    older, newer = a_message(b"x" * 60, 2), a_message(b"y" * 40, 2)
    cache.load([older])
    cache.load([newer])
    newest = a_message(b"z" * 50, 2)
    cache.load([newest])

    with django_assert_num_queries(0):
        cache.load([newer, newest])
    with django_assert_num_queries(1):
        cache.load([older])
