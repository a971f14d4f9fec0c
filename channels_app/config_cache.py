"""Cached channels, consumers and keys of this process, at most a second old.

One row (DirectoryVersion) moves with every configuration write. A process looks at it when a
change was announced on this host, else every ``CHECK_S`` seconds, and forgets everything when it
moved.
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping

from channels_app.change_marker import change_marker
from channels_app.models import DirectoryVersion
from channels_app.rules.consumers import ConsumerConfig, Signer
from channels_app.snapshot import (
    ChannelConfig,
    KeyConfig,
    Snapshot,
    TeamConfig,
    load_key,
    load_signer,
    load_sigv4_secret,
)

__all__ = ["ChannelConfig", "ConfigCache", "ConsumerConfig", "KeyConfig", "Signer", "config_cache"]

CHECK_S = 0.4
RETRY_INTERVAL_S = 0.01
"""Between two looks for names that are not known. However many names are made up, a process asks no
more often for them."""
MAX_UNKNOWN = 10_000
"""Unknown key ids remembered, so that a wrong key does not cost a query each time."""


class ConfigCache:
    """The cache. Threads share it; a snapshot, once built, is never changed."""

    def __init__(self) -> None:
        self._lock, self._refreshing = threading.RLock(), threading.Lock()
        self._reloading, self._began = threading.Lock(), float("-inf")
        self._number = -1
        self._checked = float("-inf")
        self._mark = (0, 0)
        self._forget()

    def _forget(self) -> None:
        self._snapshot: Snapshot | None = None
        self._keys: dict[str, KeyConfig | None] = {}
        self._signers: dict[int, Signer] = {}
        self._sigv4_secrets: dict[str, str] = {}

    def refresh(self, *, now: bool = False, number: int | None = None) -> int:
        """Look whether configuration changed; ``now`` asks even if that was a moment ago.

        Who has just read the ``number`` (``DirectoryVersion.CURRENT``) brings it, and nobody asks.
        Returns the version number that the cache stands for.
        """
        if number is not None:
            return self._learn(number)
        mark = change_marker.mark()
        if not now and self._is_fresh(mark, CHECK_S):
            return self._number
        # One thread asks; the others go on with what is known as long as that is young enough.
        is_first = self._refreshing.acquire(blocking=False)
        if not (is_first or now) and self._is_fresh(mark, 2 * CHECK_S):
            return self._number
        try:
            ticks = time.monotonic()
            number = DirectoryVersion.current()
            with self._lock:
                self._checked, self._mark = ticks, mark
                return self._learn(number)
        finally:
            if is_first:
                self._refreshing.release()

    def _learn(self, number: int) -> int:
        with self._lock:
            if number != self._number:
                self._forget()
                self._number = number
        return number

    def _reload(self) -> None:
        """Ask the database itself: what is not known here may be a moment old on another host.

        Who comes while somebody asks waits for the next look, and shares it with all who do.
        """
        came = time.monotonic()
        with self._reloading:
            if self._began > came:
                return
            time.sleep(max(0.0, self._began + RETRY_INTERVAL_S - came))
            self._began = time.monotonic()
            self.refresh(now=True)

    def _is_fresh(self, mark: tuple[int, int], seconds: float) -> bool:
        return mark == self._mark and time.monotonic() - self._checked < seconds

    def channel(self, slug: str, *, refresh: bool = True) -> ChannelConfig | None:
        """The channel of that name, or None. Who looked a moment ago need not ``refresh`` again.

        None only after the database was asked.
        """
        if refresh:
            self.refresh()
        if (known := self._all().channels.get(slug)) is None:
            self._reload()
            known = self._all().channels.get(slug)
        return known

    def channels(self) -> Iterable[ChannelConfig]:
        """Every channel."""
        self.refresh()
        return self._all().channels.values()

    def consumers(self, wanted: Collection[int] = ()) -> Mapping[int, ConsumerConfig]:
        """All that are not retired, by id. Of ``wanted`` ones, those that the database has, too."""
        self.refresh()
        known = self._all().consumers
        if any(consumer_id not in known for consumer_id in wanted):
            self._reload()
            known = self._all().consumers
        return known

    def consumer(self, channel: str, client_id: str) -> ConsumerConfig | None:
        """The one of that name, or None: only after the database was asked."""
        if (known := self._all().named.get((channel, client_id))) is None:
            self._reload()
            known = self._all().named.get((channel, client_id))
        return known

    def ordered(self) -> Mapping[int, ConsumerConfig]:
        """Those that keep the order of keys, by id, as known: this looks for nothing newer."""
        return self._all().ordered

    def team(self, producer_id: int) -> TeamConfig | None:
        """Whose producer that is, as known; None for one without a team."""
        return self._all().teams.get(producer_id)

    def awaiting(self) -> frozenset[int]:
        """Those that acknowledge later, by id, as known."""
        return self._all().awaiting

    def dead_lettered(self) -> frozenset[int]:
        """Those whose dead deliveries are published on a channel, by id, as known."""
        return self._all().dead_lettered

    def key(self, key_id: str) -> KeyConfig | None:
        """The API key with that id, or None."""
        self.refresh()
        with self._lock:
            if key_id in self._keys:
                return self._keys[key_id]
            if len(self._keys) > MAX_UNKNOWN:
                self._keys.clear()
            number = self._number
        view = load_key(key_id)
        with self._lock:
            if number == self._number:
                self._keys[key_id] = view
        return view

    def sigv4_secret(self, key_id: str) -> str:
        """The opened secret access key of an API key that has one (``KeyConfig.has_sigv4``).

        Raises errors.KeyUnavailable without the encryption key, ApiKey.DoesNotExist.
        """
        with self._lock:
            known = self._sigv4_secrets.get(key_id)
            number = self._number
        if known is None:
            known = load_sigv4_secret(key_id)
            with self._lock:
                if number == self._number:
                    self._sigv4_secrets[key_id] = known
        return known

    def signer(self, consumer_id: int) -> Signer:
        """Opened secrets and headers of one consumer."""
        self.refresh()
        with self._lock:
            known = self._signers.get(consumer_id)
            number = self._number
        if known is not None:
            return known
        signer = load_signer(consumer_id)
        with self._lock:
            if number == self._number:
                self._signers[consumer_id] = signer
        return signer

    def _all(self) -> Snapshot:
        with self._lock:
            if self._snapshot is None:
                self._snapshot = Snapshot.take()
            return self._snapshot


config_cache = ConfigCache()
