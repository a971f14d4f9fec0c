"""Primary keys increase, never repeat, and have one public spelling."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import ids
from channels_app.core.ids import EPOCH_MS, IdMaker, created_ms, first_id_at, from_public, to_public
from channels_app.database import clock as database_clock
from channels_app.models import new_id, new_message_id
from tests.support.properties import quick

NOW_MS = EPOCH_MS + 10_000
KEYS = st.integers(0, 2**63 - 1)


def scripted(times: list[int]) -> Iterator[int]:
    yield from times
    while True:
        yield times[-1]


@quick
@given(st.lists(st.integers(NOW_MS - 50, NOW_MS + 50), min_size=1, max_size=200), st.data())
def test_ids_increase_despite_clock_steps(times: list[int], data: st.DataObject) -> None:
    clock = scripted(times)
    make = IdMaker(now_ms=lambda: next(clock))
    last = -1
    for _ in times:
        if data.draw(st.booleans()):
            make.reseed()
        key = make()
        assert last < key < 2**63
        last = key


def test_a_full_millisecond_borrows_from_the_next() -> None:
    make = IdMaker(now_ms=lambda: NOW_MS)
    keys = [make() for _ in range(2 * 4096 + 1)]
    assert keys == sorted(set(keys))
    assert [created_ms(key) for key in keys[:4096]] == [NOW_MS] * 4096
    assert created_ms(keys[4096]) == NOW_MS + 1
    assert created_ms(keys[8192]) == NOW_MS + 2


def test_a_clock_that_steps_back_stays_on_the_last_millisecond() -> None:
    clock = scripted([NOW_MS, NOW_MS - 5_000, NOW_MS + 1])
    make = IdMaker(now_ms=lambda: next(clock))
    assert [created_ms(make()) for _ in range(3)] == [NOW_MS, NOW_MS, NOW_MS + 1]


def test_slots_keep_processes_apart() -> None:
    makers = [IdMaker(slot=slot, now_ms=lambda: NOW_MS) for slot in range(1024)]
    keys = [make() for make in makers for _ in range(3)]
    assert len(set(keys)) == len(keys)


def test_reseeding_leaves_the_slot_for_another() -> None:
    clock_ms = NOW_MS
    make, rival = IdMaker(slot=7, now_ms=lambda: clock_ms), IdMaker(slot=7, now_ms=lambda: clock_ms)
    assert make() == rival()
    make.reseed()
    clock_ms += 1
    assert make() != rival()


def test_reseeding_always_finds_another_slot() -> None:
    make = IdMaker(slot=1023)
    slots = [1023]
    for _ in range(3_000):
        make.reseed()
        slots.append(make() >> 12 & 1023)
    assert all(before != after for before, after in pairwise(slots))
    assert len(set(slots)) > 900


def test_threads_share_an_id_generator() -> None:
    make = IdMaker()
    made: list[list[int]] = [[] for _ in range(8)]

    def work(keys: list[int]) -> None:
        keys.extend(make() for _ in range(2_000))

    threads = [threading.Thread(target=work, args=(keys,)) for keys in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [key for keys in made for key in keys]
    assert len(set(keys)) == 16_000


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_generates_other_ids() -> None:
    make = IdMaker(now_ms=lambda: NOW_MS)
    make()
    read, write = os.pipe()
    with make._lock:  # as if another thread were generating a key during the fork
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that inherited the held lock would wait forever
            os.write(write, str(make()).encode())
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    assert int(os.read(read, 30)) != make()
    os.close(read)


def test_the_clock_is_real_by_default() -> None:
    before = int(time.time() * 1000)
    key = IdMaker()()
    assert before <= created_ms(key) <= time.time() * 1000


@pytest.mark.trap("rows that commit late are skipped")
@pytest.mark.parametrize("behind", [timedelta(hours=1), timedelta(hours=-1)])
def test_ids_of_rows_are_not_older_than_the_databases_time(
    monkeypatch: pytest.MonkeyPatch, behind: timedelta
) -> None:
    """This host's clock is an hour behind the database's, or ahead of it."""
    here = datetime.now(UTC)
    there = here + behind
    estimate = database_clock.Estimate(there, time.monotonic(), there)
    monkeypatch.setattr(database_clock._clock, "_estimate", estimate)
    monkeypatch.setattr(database_clock._clock, "_ask_at", math.inf)
    for maker, expected in ((new_id, max(here, there)), (new_message_id, here)):
        monkeypatch.setattr(maker, "_ms", 0)  # restored afterwards: ids never go back
        assert created_ms(maker()) == pytest.approx(expected.timestamp() * 1000, abs=60_000)


def test_an_id_contains_its_time() -> None:
    assert datetime.fromtimestamp(created_ms(0) / 1000, UTC) == datetime(2025, 1, 1, tzinfo=UTC)


@quick
@given(KEYS)
def test_public_form_round_trips(key: int) -> None:
    text = to_public("msg", key)
    assert len(text) == 17
    assert from_public("msg", text) == key
    assert from_public("dlv", text) is None


@quick
@given(KEYS, KEYS)
def test_public_form_sorts_like_the_number(a: int, b: int) -> None:
    assert (a < b) == (to_public("x", a) < to_public("x", b))


@quick
@given(st.text(alphabet="0123456789abcdefghijklmnopqrstuvwxyzMSG_", max_size=18) | st.text())
def test_an_id_has_one_notation(text: str) -> None:
    for candidate in (text, f"msg_{text}"):
        key = from_public("msg", candidate)
        assert key is None or to_public("msg", key) == candidate


@pytest.mark.parametrize(
    "text",
    [
        "",
        "msg_",
        "0000000000001",
        "msg_000000000001",
        "msg_00000000000001",
        "msg_000000000000i",
        "msg_000000000000l",
        "msg_000000000000o",
        "msg_000000000000u",
        "msg_00000000000A1",
        "MSG_0000000000001",
        "msg_8000000000000",
        "msg_0000000000001\n",
        " msg_000000000001",
        "msg_00000000000 1",
        "msg_00000000000_1",
        "msg_-000000000001",
        "msg_" + "\u0660" * 13,
        "msg_%",
        "dlv_0000000000001",
    ],
)
def test_malformed_ids_are_refused(text: str) -> None:
    assert from_public("msg", text) is None


def test_known_values() -> None:
    assert to_public(ids.MESSAGE, 0) == "msg_0000000000000"
    assert to_public(ids.DELIVERY, 2**63 - 1) == "dlv_7zzzzzzzzzzzz"
    assert from_public(ids.REPLAY, "rpl_00000000000zz") == 1023


@given(st.integers(0, 2**63 - 1))
def test_a_uuid_is_of_version_7_and_round_trips(number: int) -> None:
    text = ids.to_uuid(number)
    assert (UUID(text).version, UUID(text).variant) == (7, RFC_4122)
    assert ids.from_uuid(text) == ids.message_number(text) == number
    assert ids.message_number(to_public(ids.MESSAGE, number)) == number
    assert UUID(text).int >> 80 == created_ms(number)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_uuids_sort_like_the_numbers(a: int, b: int) -> None:
    assert (ids.to_uuid(a) < ids.to_uuid(b)) == (a < b)


@pytest.mark.parametrize(
    "text",
    [
        *("", "0193f4f5-1d00-7000-8000-000000000001", "0193f4f5-1d00-4000-8000-000000000000"),
        *("0193f4f5-1d00-7000-0000-000000000000", "0193F4F5-1D00-7000-8000-000000000000"),
        *("0193f4f51d0070008000000000000000", "00000000-0000-7000-8000-000000000000"),
        *("ffffffff-ffff-7000-8000-000000000000", "0193f4f5-1d00-7000-8000-000000000000\n"),
    ],
)
def test_other_uuids_are_refused(text: str) -> None:
    assert ids.from_uuid(text) is None
    assert ids.from_uuid(ids.to_uuid(0x400000)) == 0x400000


@pytest.mark.parametrize("number", [-1, 2**63])
def test_an_invalid_id_has_no_public_form(number: int) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        to_public("msg", number)


@quick
@given(st.integers(EPOCH_MS, EPOCH_MS + 2**41 - 2), st.integers(0, 1023))
def test_the_first_id_of_a_millisecond_cuts_exactly(unix_ms: int, slot: int) -> None:
    older = IdMaker(slot=slot, now_ms=lambda: unix_ms - 1)()
    key = IdMaker(slot=slot, now_ms=lambda: unix_ms)()
    if unix_ms > EPOCH_MS + 1:
        assert older < first_id_at(unix_ms)
    if unix_ms > EPOCH_MS:
        assert first_id_at(unix_ms) <= key < first_id_at(unix_ms + 1)
    assert created_ms(first_id_at(unix_ms)) == unix_ms


def test_ids_before_the_epoch_are_refused() -> None:
    assert first_id_at(0) == 0
