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
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hookstation_client.errors import Retry

F = TypeVar("F", bound=Callable[..., Any])

KEEP_S = 7 * 86_400.0
CLAIM_S = 3600.0
"""Seconds after which a claim whose process died is given to another one."""
BUSY_RETRY_S = 10.0

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


class _Claims:
    """A store made of three short calls."""

    def begin(self, key: str) -> str:
        """Claim a key; ``new``, or ``done`` or ``running`` as it was."""
        raise NotImplementedError

    def done(self, key: str) -> None:
        """Remember the key as handled."""
        raise NotImplementedError

    def forget(self, key: str) -> None:
        """Give the claim up."""
        raise NotImplementedError

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """As `Store.claim`."""
        state = self.begin(key)
        if state == "running":
            raise Retry(BUSY_RETRY_S, "the same message is being handled right now")
        if state == "done":
            yield False
            return
        try:
            yield True
        except BaseException:
            self.forget(key)
            raise
        self.done(key)


class MemoryStore(_Claims):
    """Remembers in this process alone: for tests, and for one process that may forget."""

    def __init__(self, keep: float = KEEP_S) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._states: dict[str, tuple[str, float]] = {}

    def begin(self, key: str) -> str:
        """Claim a key."""
        now = time.monotonic()
        with self._lock:
            # The oldest come first: a key is put at the end each time it is set.
            for old, (_, until) in list(self._states.items())[:100]:
                if until < now:
                    del self._states[old]
            state, until = self._states.get(key, ("new", 0.0))
            if until >= now:
                return state
            self._set(key, "running")
            return "new"

    def done(self, key: str) -> None:
        """Remember the key as handled."""
        with self._lock:
            self._set(key, "done")

    def forget(self, key: str) -> None:
        """Give the claim up."""
        with self._lock:
            self._states.pop(key, None)

    def _set(self, key: str, state: str) -> None:
        self._states.pop(key, None)
        self._states[key] = (state, time.monotonic() + self._keep)


class SQLiteStore(_Claims):
    """Remembers in an SQLite file, which the processes of one host share."""

    def __init__(self, path: str | Path, keep: float = KEEP_S) -> None:
        self._path = str(path)
        self._keep = keep
        with self._connection() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS handled"
                " (key TEXT PRIMARY KEY, state TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID"
            )
            database.execute("CREATE INDEX IF NOT EXISTS handled_until ON handled (until)")

    def begin(self, key: str) -> str:
        """Claim a key."""
        now = time.time()
        with self._connection() as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM handled WHERE until < ?", (now,))
            found = database.execute("SELECT state FROM handled WHERE key = ?", (key,)).fetchone()
            if found is None:
                database.execute(
                    "INSERT INTO handled VALUES (?, 'running', ?)", (key, now + CLAIM_S)
                )
        return "new" if found is None else str(found[0])

    def done(self, key: str) -> None:
        """Remember the key as handled."""
        with self._connection() as database:
            database.execute(
                "REPLACE INTO handled VALUES (?, 'done', ?)", (key, time.time() + self._keep)
            )

    def forget(self, key: str) -> None:
        """Give the claim up."""
        with self._connection() as database:
            database.execute("DELETE FROM handled WHERE key = ?", (key,))

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

    def __init__(self, cache: Any, keep: float = KEEP_S, prefix: str = "hookstation:") -> None:
        self._cache = cache
        self._keep = keep
        self._prefix = prefix

    def begin(self, key: str) -> str:
        """Claim a key."""
        name = self._name(key)
        if self._cache.add(name, "running", timeout=CLAIM_S):
            return "new"
        return str(self._cache.get(name) or "running")

    def done(self, key: str) -> None:
        """Remember the key as handled."""
        self._cache.set(self._name(key), "done", timeout=self._keep)

    def forget(self, key: str) -> None:
        """Give the claim up."""
        self._cache.delete(self._name(key))

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
