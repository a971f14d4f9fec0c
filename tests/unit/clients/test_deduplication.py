"""Each message is handled once, as long as the store remembers it."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hookstation_client
import pytest
from django.core.cache.backends.locmem import LocMemCache
from hookstation_client.deduplication import (
    CLAIM_S,
    CacheStore,
    MemoryStore,
    SQLiteStore,
    Store,
    once,
)
from hookstation_client.errors import Retry

Make = Callable[..., Store]


@pytest.fixture(params=["memory", "sqlite", "cache"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a store; stores of one test share their state, where the kind of store can."""
    cache = LocMemCache(str(tmp_path), {})
    kinds: dict[str, Make] = {
        "memory": MemoryStore,
        "sqlite": lambda **options: SQLiteStore(tmp_path / "handled.db", **options),
        "cache": lambda **options: CacheStore(cache, **options),
    }
    yield kinds[request.param]
    cache.clear()


def recording(handled: list[str]) -> Callable[[Any], None]:
    """Return a handler that records its calls."""

    def handle(message: Any) -> None:
        handled.append(message.id)

    return handle


def message(id: str) -> Any:
    return SimpleNamespace(id=id, attempt=1)


def test_repeat_is_not_handled_again(make: Make) -> None:
    handled: list[str] = []
    handle = once(make())(recording(handled))

    for id in ["one", "two", "one"]:
        handle(message(id))

    assert handled == ["one", "two"]


def test_message_whose_handler_failed_is_handled_again(make: Make) -> None:
    calls = []

    @once(make())
    def handle(message: Any) -> None:
        calls.append(message.id)
        if len(calls) == 1:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        handle(message("one"))
    handle(message("one"))
    handle(message("one"))

    assert calls == ["one", "one"]


def test_a_message_being_handled_is_retried_later(make: Make) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @once(make())
    def handle(message: Any) -> None:
        begun.set()
        assert may_end.wait(60)

    first = threading.Thread(target=handle, args=(message("one"),))
    first.start()
    assert begun.wait(60)
    with pytest.raises(Retry) as busy:
        handle(message("one"))
    may_end.set()
    first.join()

    assert 0 < busy.value.after <= CLAIM_S
    assert handle(message("one")) is None


def test_two_functions_share_a_store(make: Make) -> None:
    store = make()
    handled: list[str] = []
    handlers = [once(store, name)(recording(handled)) for name in ("first", "second")]

    for handle in handlers * 2:
        handle(message("one"))

    assert handled == ["one", "one"]


def test_a_coroutine_function_stays_a_coroutine_function(make: Make) -> None:
    handled: list[str] = []

    @once(make())
    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        handled.append(message.id)

    asyncio.run(handle(message("one")))
    asyncio.run(handle(message("one")))

    assert handled == ["one"]


def test_old_message_ids_are_deleted(make: Make) -> None:
    handled: list[str] = []
    handle = once(make(keep=0.0))(recording(handled))

    for id in ["one", "two", "one"]:
        handle(message(id))

    assert handled == ["one", "two", "one"]


def test_sqlite_store_survives_its_process(tmp_path: Path) -> None:
    handled: list[str] = []
    for _ in range(2):
        store = SQLiteStore(tmp_path / "handled.db")
        once(store, "same")(recording(handled))(message("one"))

    assert handled == ["one"]


CLAIMS = """
import os, sys
from hookstation_client.deduplication import SQLiteStore

with SQLiteStore(sys.argv[1]).claim("same:one"):
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow("starts a process that is killed")
def test_message_of_a_killed_process_is_handled_at_once(tmp_path: Path) -> None:
    handled: list[str] = []
    path = tmp_path / "handled.db"
    source = Path(hookstation_client.__file__).parents[1]

    killed = subprocess.run(
        [sys.executable, "-c", CLAIMS, path], env={"PYTHONPATH": str(source)}, check=False
    )
    once(SQLiteStore(path), "same")(recording(handled))(message("one"))

    assert killed.returncode == -9
    assert handled == ["one"]


def test_an_abandoned_claim_expires(make: Make) -> None:
    handled: list[str] = []
    store = make(claim=0.0)
    entered = store.claim("same:one")
    entered.__enter__()

    once(store, "same")(recording(handled))(message("one"))

    assert handled == ["one"]


def test_a_handler_past_its_claim_removes_no_other_claim(make: Make) -> None:
    lapsed, store = make(claim=0.0), make()
    if isinstance(store, MemoryStore):
        store = lapsed
    handled: list[str] = []

    handle = once(store, "same")(recording(handled))

    @once(lapsed, "same")
    def fail_late(message: Any) -> None:
        handle(message)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_late(message("one"))
    handle(message("one"))

    assert handled == ["one"]


def test_a_process_on_another_host_is_considered_alive(tmp_path: Path) -> None:
    path = tmp_path / "handled.db"
    store = SQLiteStore(path)
    # no process on this machine has this id
    claim = ("same:one", "4194305:elsewhere:x", time.time() + 60)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO hookstation_handled VALUES (?, ?, ?)", claim)

    with pytest.raises(Retry):
        once(store, "same")(recording([]))(message("one"))


IN_A_MODEL = """
import django
from django.conf import settings

database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": database})
django.setup()
from django.db import connection, models
from hookstation_client.deduplication import ModelStore, once

class Handled(models.Model):
    key = models.CharField(max_length=200, unique=True)
    class Meta:
        app_label = "shop"

class Order(models.Model):
    class Meta:
        app_label = "shop"

with connection.schema_editor() as editor:
    editor.create_model(Handled)
    editor.create_model(Order)
fails = [True, False]

class Message:
    id, attempt = "one", 1

@once(ModelStore(Handled), "order")
def order(message):
    Order.objects.create()
    if fails.pop(0):
        raise RuntimeError

for _ in range(3):
    try:
        order(Message())
        print(Order.objects.count(), *Handled.objects.values_list("key", flat=True))
    except RuntimeError:
        print(Order.objects.count(), Handled.objects.count())
"""


@pytest.mark.slow("starts a process with settings of its own")
def test_model_store_uses_the_handlers_transaction() -> None:
    source = Path(hookstation_client.__file__).parents[1]

    done = subprocess.run(
        [sys.executable, "-c", IN_A_MODEL],
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout.splitlines(), done.stderr) == (["0 0", "1 order:one", "1 order:one"], "")
