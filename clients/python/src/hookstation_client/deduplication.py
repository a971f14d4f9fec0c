"""Handle each message once: the decorator `once`, and stores of handled message ids.

Delivery is at least once, so a message may arrive again with the same id. By default a store keeps
ids for a week, which is longer than the broker retries.
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
"""Seconds until another process may handle a message whose process died.

Must be longer than a handler runs: after this time a repeat of the message runs at the same time.
"""

current: contextvars.ContextVar[str] = contextvars.ContextVar("hookstation_message_id")
"""The id of the message that a handler of `Hooks` handles."""


class Store(Protocol):
    """Stores which messages were handled. Implement your own to store it with the effect."""

    def claim(self, key: str) -> contextlib.AbstractContextManager[bool]:
        """Return a context manager whose value is whether to handle the message.

        An exception inside it removes the claim. Raises `Retry` while another thread or process
        handles the same message.
        """


def once(store: Store, name: str | None = None) -> Callable[[F], F]:
    """Return a decorator that calls the function once for each message in ``store``.

    For handlers of `Hooks` and of a worker. For a repeat, the wrapper returns None, which
    acknowledges it. If the handler raises, the message does not count as handled. ``name``
    distinguishes functions that share a store; the default is the function's qualified name.
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

        # The wrapper has the function's signature; type hints cannot express that for both kinds.
        return wrapper  # type: ignore[return-value]

    return decorate


class _State(NamedTuple):
    """The state of a key in a store: ``new``, ``running`` or ``done``."""

    name: str
    until: float
    """Unix seconds until which the claim holds; for ``new``, the claim that was just made."""


class _Claims:
    """A store that is built from three short operations."""

    def _begin(self, key: str) -> _State:
        """Claim a key and return its previous state."""
        raise NotImplementedError

    def _done(self, key: str) -> None:
        """Store the key as handled."""
        raise NotImplementedError

    def _forget(self, key: str, until: float) -> None:
        """Remove the claim with this end, but not a later claim by another process."""
        raise NotImplementedError

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Implement `Store.claim`."""
        state = self._begin(key)
        if state.name == "running":
            # A retry before the claim ends would only use up attempts.
            wait = max(1.0, state.until - time.time())
            raise Retry(wait, "the same message is being handled")
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
    """Stores handled messages in memory: for tests, or a single process that may lose them."""

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
            # The oldest come first: setting a key moves it to the end.
            for old, state in list(self._states.items())[:100]:
                if state.until < now:
                    del self._states[old]
            known = self._states.get(key)
            if known is not None and known.until >= now:
                return known
            self._set(key, _State("running", until))
            return _State("new", until)

    def _done(self, key: str) -> None:
        """Store the key as handled."""
        with self._lock:
            self._set(key, _State("done", time.time() + self._keep))

    def _forget(self, key: str, until: float) -> None:
        """Remove the claim."""
        with self._lock:
            if self._states.get(key) == _State("running", until):
                del self._states[key]

    def _set(self, key: str, state: _State) -> None:
        self._states.pop(key, None)
        self._states[key] = state


class SQLiteStore(_Claims):
    """Stores handled messages in an SQLite file, which the processes of one host share.

    When a process dies, its claims end at once.
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
        """Store the key as handled."""
        with self._connection() as database:
            self._set(database, key, "", time.time() + self._keep)

    def _forget(self, key: str, until: float) -> None:
        """Remove the claim."""
        with self._connection() as database:
            database.execute(
                "DELETE FROM hookstation_handled WHERE key = ? AND owner = ? AND until = ?",
                (key, _this_process(), until),
            )

    def _set(self, database: sqlite3.Connection, key: str, owner: str, until: float) -> None:
        database.execute("REPLACE INTO hookstation_handled VALUES (?, ?, ?)", (key, owner, until))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open a new connection: threads and forked processes cannot share one."""
        with (
            contextlib.closing(
                sqlite3.connect(self._path, isolation_level=None, timeout=30.0)
            ) as database,
            database,
        ):
            yield database


class CacheStore(_Claims):
    """Stores handled messages in a cache with Django's interface (``add``, ``get``, ``set``...).

    All processes must share the cache, and ``add`` must be atomic, as with Redis, Memcached and
    the database cache. If the cache evicts an entry, a repeat of that message is handled again.
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
        """Store the key as handled."""
        self._cache.set(self._name(key), "done", timeout=self._keep)

    def _forget(self, key: str, until: float) -> None:
        """Remove the claim."""
        name = self._name(key)
        if self._cache.get(name) == until:
            self._cache.delete(name)

    def _name(self, key: str) -> str:
        # Memcached refuses long keys and those with spaces.
        return self._prefix + hashlib.sha256(key.encode()).hexdigest()


class ModelStore:
    """Stores handled messages in a Django model, in the handler's own transaction.

    The database commits the handler's writes and the row of the message together or not at all, so
    each message takes effect once. ``model`` needs a unique text field ``key`` that holds the
    longest name of your functions and 60 more characters. Delete old rows yourself. Handlers must
    not be coroutine functions, because Django's transactions do not support them.
    """

    def __init__(self, model: Any, using: str | None = None) -> None:
        self._model = model
        self._using = using

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Implement `Store.claim`; a second process waits for the first one's transaction."""
        from django.db import router, transaction

        database = self._using or router.db_for_write(self._model)
        with transaction.atomic(using=database):
            manager = self._model._default_manager.using(database)
            _, is_new = manager.get_or_create(key=key)
            yield is_new


_processes: dict[int, str] = {}


def _this_process() -> str:
    """Return the process id, the host, and a random mark, because process ids are reused."""
    pid = os.getpid()
    return f"{pid}:{socket.gethostname()}:{_processes.setdefault(pid, uuid.uuid4().hex)}"


def _is_alive(owner: str) -> bool:
    """Return whether a process still exists; true if that is unknown."""
    pid, host, _ = owner.split(":")
    if host != socket.gethostname():
        return True
    if int(pid) == os.getpid():
        return owner == _this_process()
    if os.name != "posix":
        return True  # Signal 0 does not check for existence there.
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
