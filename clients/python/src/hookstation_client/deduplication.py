"""Handle each message once: `once` and the stores that remember what was handled.

Delivery is at least once, so a message may arrive again with the same id. A store remembers ids for
a week unless told otherwise: longer than the broker tries.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import inspect
import os
import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from hookstation_client.errors import Retry

F = TypeVar("F", bound=Callable[..., Any])

KEEP_S = 7 * 86_400.0
CLAIM_S = 120.0
"""Seconds after which a message whose process died is handled by another one.

Longer than a handler takes: after that time a repeat of its message would run beside it.
"""

current: contextvars.ContextVar[str] = contextvars.ContextVar("hookstation_message_id")
"""The id of the message that a handler of `Hooks` is called for."""


class Store(Protocol):
    """Remembers which messages were handled. Write your own where the effect is stored."""

    def claim(self, key: str) -> contextlib.AbstractContextManager[bool]:
        """Enter to learn whether to handle the message; an exception inside forgets the claim.

        Raises `Retry` when another thread or process handles the same message right now.
        """


def once(store: Store, name: str | None = None) -> Callable[[F], F]:
    """Call the function once for each message, as far as ``store`` remembers.

    For handlers of `Hooks` and of a worker. A repeat returns None, which acknowledges it. A handler
    that raises has not handled the message. ``name`` tells the functions apart that share a
    store; it is the function's qualified name unless given.
    """

    def decorate(function: F) -> F:
        label = name or f"{function.__module__}.{function.__qualname__}"

        def key(arguments: tuple[Any, ...]) -> str:
            ids = (getattr(one, "id", None) for one in arguments if hasattr(one, "attempt"))
            return f"{label}:{current.get(None) or next(ids)}"

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*arguments: Any) -> Any:
                with store.claim(key(arguments)) as is_new:
                    return await function(*arguments) if is_new else None
        else:

            @functools.wraps(function)
            def wrapper(*arguments: Any) -> Any:
                with store.claim(key(arguments)) as is_new:
                    return function(*arguments) if is_new else None

        # A wrapper with the function's own signature; types cannot say so for both kinds.
        return wrapper  # type: ignore[return-value]

    return decorate


class _State(NamedTuple):
    """What a store knows about a key: ``new``, ``running`` or ``done``."""

    name: str
    until: float
    """Unix seconds until which the claim holds: of ``new``, the one that was just made."""


class _Claims:
    """A store made of three short calls."""

    def _begin(self, key: str) -> _State:
        """Claim a key; the state in which it was."""
        raise NotImplementedError

    def _done(self, key: str) -> None:
        """Remember the key as handled."""
        raise NotImplementedError

    def _forget(self, key: str, until: float) -> None:
        """Give up the claim that holds until then; not one that came after it lapsed."""
        raise NotImplementedError

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """As `Store.claim`."""
        state = self._begin(key)
        if state.name == "running":
            # Whoever asked again before the claim ends would use up attempts for nothing.
            wait = max(1.0, state.until - time.time())
            raise Retry(wait, "the same message is being handled right now")
        if state.name == "done":
            yield False
            return
        try:
            yield True
        except BaseException:
            self._forget(key, state.until)
            raise
        self._done(key)


class MemoryStore(_Claims):
    """Remembers in this process alone: for tests, and for one process that may forget."""

    def __init__(self, keep: float = KEEP_S, claim: float = CLAIM_S) -> None:
        self._keep = keep
        self._claim = claim
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}

    def _begin(self, key: str) -> _State:
        """Claim a key."""
        now = time.time()
        until = now + self._claim
        with self._lock:
            # The oldest stand first: a key is put at the end each time it is set.
            for old, state in list(self._states.items())[:100]:
                if state.until < now:
                    del self._states[old]
            known = self._states.get(key)
            if known is not None and known.until >= now:
                return known
            self._set(key, _State("running", until))
            return _State("new", until)

    def _done(self, key: str) -> None:
        """Remember the key as handled."""
        with self._lock:
            self._set(key, _State("done", time.time() + self._keep))

    def _forget(self, key: str, until: float) -> None:
        """Give the claim up."""
        with self._lock:
            if self._states.get(key) == _State("running", until):
                del self._states[key]

    def _set(self, key: str, state: _State) -> None:
        self._states.pop(key, None)
        self._states[key] = state


class SQLiteStore(_Claims):
    """Remembers in an SQLite file, which the processes of one host share.

    The claim of a process that died is free at once.
    """

    def __init__(self, path: str | Path, keep: float = KEEP_S, claim: float = CLAIM_S) -> None:
        self._path = str(path)
        self._keep = keep
        self._claim = claim
        with self._connection() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS hookstation_handled (key TEXT PRIMARY KEY,"
                " owner TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID"
            )
            database.execute(
                "CREATE INDEX IF NOT EXISTS hookstation_handled_until"
                " ON hookstation_handled (until)"
            )

    def _begin(self, key: str) -> _State:
        """Claim a key."""
        now = time.time()
        until = now + self._claim
        with self._connection() as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM hookstation_handled WHERE until < ?", (now,))
            found = database.execute(
                "SELECT owner, until FROM hookstation_handled WHERE key = ?", (key,)
            ).fetchone()
            if found is not None and (not found[0] or _is_alive(found[0])):
                return _State("running" if found[0] else "done", found[1])
            self._set(database, key, _this_process(), until)
        return _State("new", until)

    def _done(self, key: str) -> None:
        """Remember the key as handled."""
        with self._connection() as database:
            self._set(database, key, "", time.time() + self._keep)

    def _forget(self, key: str, until: float) -> None:
        """Give the claim up."""
        with self._connection() as database:
            database.execute(
                "DELETE FROM hookstation_handled WHERE key = ? AND owner = ? AND until = ?",
                (key, _this_process(), until),
            )

    def _set(self, database: sqlite3.Connection, key: str, owner: str, until: float) -> None:
        database.execute("REPLACE INTO hookstation_handled VALUES (?, ?, ?)", (key, owner, until))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own: neither threads nor forks share one."""
        with (
            contextlib.closing(
                sqlite3.connect(self._path, isolation_level=None, timeout=30.0)
            ) as database,
            database,
        ):
            yield database


class CacheStore(_Claims):
    """Remembers in a cache with Django's interface (``add``, ``get``, ``set``, ``delete``).

    The cache must be shared by all processes, and ``add`` must be atomic, as with Redis,
    Memcached and the database cache. What the cache evicts is forgotten.
    """

    def __init__(
        self,
        cache: Any,
        keep: float = KEEP_S,
        claim: float = CLAIM_S,
        prefix: str = "hookstation:",
    ) -> None:
        self._cache = cache
        self._keep = keep
        self._claim = claim
        self._prefix = prefix

    def _begin(self, key: str) -> _State:
        """Claim a key."""
        name, until = self._name(key), time.time() + self._claim
        if self._cache.add(name, until, timeout=self._claim):
            return _State("new", until)
        found = self._cache.get(name, until)
        return _State("done", until) if found == "done" else _State("running", float(found))

    def _done(self, key: str) -> None:
        """Remember the key as handled."""
        self._cache.set(self._name(key), "done", timeout=self._keep)

    def _forget(self, key: str, until: float) -> None:
        """Give the claim up."""
        name = self._name(key)
        if self._cache.get(name) == until:
            self._cache.delete(name)

    def _name(self, key: str) -> str:
        # Memcached refuses long keys and those with spaces.
        return self._prefix + hashlib.sha256(key.encode()).hexdigest()


class ModelStore:
    """Remembers in a Django model, in the transaction in which the handler writes.

    What the handler stores in the same database and the memory of it are committed together or not
    at all: each message has its effect once. ``model`` needs a unique text field ``key``, as long
    as the names of your functions and 60 characters more. Delete old rows yourself. For functions
    that are not coroutines, as Django's transactions are.
    """

    def __init__(self, model: Any, using: str | None = None) -> None:
        self._model = model
        self._using = using

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """As `Store.claim`; a second process waits for the first one's transaction."""
        from django.db import router, transaction

        database = self._using or router.db_for_write(self._model)
        with transaction.atomic(using=database):
            manager = self._model._default_manager.using(database)
            _, is_new = manager.get_or_create(key=key)
            yield is_new


_processes: dict[int, str] = {}


def _this_process() -> str:
    """Its id, its host, and a mark that a later process of the same id does not have."""
    pid = os.getpid()
    return f"{pid}:{socket.gethostname()}:{_processes.setdefault(pid, uuid.uuid4().hex)}"


def _is_alive(owner: str) -> bool:
    """Whether a process still exists; true where that is not known."""
    pid, host, _ = owner.split(":")
    if host != socket.gethostname():
        return True
    if int(pid) == os.getpid():
        return owner == _this_process()
    if os.name != "posix":
        return True  # Signal 0 asks nothing there.
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
