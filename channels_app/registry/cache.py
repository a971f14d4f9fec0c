"""Cache the channels, consumers and keys in this process, for at most about a second.

Every configuration write increments the number in one row (ConfigVersion). A process reads that
row when the change marker of this host has moved, else every ``CHECK_S`` seconds. When the number
has changed, it reads what has changed since, and forgets keys and secrets.
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping

from channels_app.change_marker import change_marker
from channels_app.core.consumer_config import ConsumerConfig, Signer
from channels_app.core.rate_limits import Limit
from channels_app.models import ConfigVersion
from channels_app.registry.snapshot import (
    ChannelConfig,
    KeyConfig,
    Snapshot,
    load_key,
    load_signer,
    load_signers,
    load_sigv4_secret,
)

__all__ = ["ChannelConfig", "ConfigCache", "ConsumerConfig", "KeyConfig", "Signer", "config_cache"]

CHECK_S = 0.4
RETRY_INTERVAL_S = 0.01
"""Seconds between two reloads for unknown names. Requests for made-up names cause no more
queries than this."""
MAX_UNKNOWN = 10_000
"""Unknown key ids that are remembered, so that a wrong key does not cost a query per request."""


class ConfigCache:
    """The cache. Threads share it. A snapshot is never changed after it is built."""

    def __init__(self) -> None:
        self._lock, self._query_lock = threading.RLock(), threading.Lock()
        self._reloading, self._began = threading.Lock(), float("-inf")
        self._number = -1
        self._checked = float("-inf")
        self._mark = (0, 0)
        self._snapshot: Snapshot | None = None
        self._forget()

    def _forget(self) -> None:
        self._is_stale = True
        self._keys: dict[str, KeyConfig | None] = {}
        self._signers: dict[int, Signer] = {}
        self._sigv4_secrets: dict[str, str] = {}

    def refresh(self, *, now: bool = False, number: int | None = None) -> int:
        """Clear the cache if configuration changed.

        ``now`` queries even if the last check is recent. A caller that has just read ``number``
        (``ConfigVersion.CURRENT``) passes it, which saves the query. Returns the version number
        of the cached configuration.
        """
        if number is not None:
            return self._learn(number)
        mark = change_marker.mark()
        if not now and self._is_fresh(mark, CHECK_S):
            return self._number
        # One thread queries; the others use the cache while it is recent enough.
        is_first = self._query_lock.acquire(blocking=False)
        if not (is_first or now) and self._is_fresh(mark, 2 * CHECK_S):
            return self._number
        try:
            ticks = time.monotonic()
            number = ConfigVersion.current()
            with self._lock:
                self._checked, self._mark = ticks, mark
                return self._learn(number)
        finally:
            if is_first:
                self._query_lock.release()

    def _learn(self, number: int) -> int:
        with self._lock:
            if number != self._number:
                self._forget()
                self._number = number
        return number

    def _reload(self) -> None:
        """Query the database at once: another host may have just created the missing name.

        Callers that arrive during a query wait for the next one and share it.
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
        """The channel of that name, or None. Pass ``refresh=False`` right after a `refresh`.

        None only after a query of the database.
        """
        if refresh:
            self.refresh()
        if (channel := self._all().channels.get(slug)) is None:
            self._reload()
            channel = self._all().channels.get(slug)
        return channel

    def channels(self) -> Iterable[ChannelConfig]:
        """Every channel."""
        self.refresh()
        return self._all().channels.values()

    def channels_by_id(self) -> Mapping[int, ChannelConfig]:
        """Every channel by id; does not refresh the cache."""
        return self._all().channels_by_id

    def consumers(self, wanted: Collection[int] = ()) -> Mapping[int, ConsumerConfig]:
        """Consumers that are not retired, by id. Reloads if one of ``wanted`` is missing."""
        self.refresh()
        consumers = self._all().consumers
        if any(consumer_id not in consumers for consumer_id in wanted):
            self._reload()
            consumers = self._all().consumers
        return consumers

    def consumer(self, channel: str, client_id: str) -> ConsumerConfig | None:
        """The consumer of that name, or None; None only after a query of the database."""
        if (consumer := self._all().named.get((channel, client_id))) is None:
            self._reload()
            consumer = self._all().named.get((channel, client_id))
        return consumer

    def ordered(self) -> Mapping[int, ConsumerConfig]:
        """Consumers that keep the order of keys, by id; does not refresh the cache."""
        return self._all().ordered

    def team_limit(self, producer_id: int) -> Limit | None:
        """How much may wait of that producer's team, if limited; does not refresh the cache."""
        return self._all().team_limits.get(producer_id)

    def awaiting(self) -> frozenset[int]:
        """Ids of the consumers that acknowledge later; does not refresh the cache."""
        return self._all().awaiting

    def dead_lettered(self) -> frozenset[int]:
        """Ids of the consumers with a dead-letter channel; does not refresh the cache."""
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
        key = load_key(key_id)
        with self._lock:
            if number == self._number:
                self._keys[key_id] = key
        return key

    def sigv4_secret(self, key_id: str) -> str:
        """The decrypted secret access key of an API key that has one (``KeyConfig.has_sigv4``).

        Raises errors.KeyUnavailable without the encryption key, and ApiKey.DoesNotExist.
        """
        with self._lock:
            secret = self._sigv4_secrets.get(key_id)
            number = self._number
        if secret is None:
            secret = load_sigv4_secret(key_id)
            with self._lock:
                if number == self._number:
                    self._sigv4_secrets[key_id] = secret
        return secret

    def signer(self, consumer_id: int) -> Signer:
        """Decrypted secrets and headers of one consumer."""
        self.refresh()
        with self._lock:
            signer = self._signers.get(consumer_id)
            number = self._number
        if signer is not None:
            return signer
        signer = load_signer(consumer_id)
        with self._lock:
            if number == self._number:
                self._signers[consumer_id] = signer
        return signer

    def prepare_signers(self, consumer_ids: Collection[int]) -> None:
        """Read the signers of consumers that `signer` will be called for, in one go."""
        self.refresh()
        with self._lock:
            missing = [key for key in consumer_ids if key not in self._signers]
            number = self._number
        if len(missing) < 2:
            return
        signers = load_signers(missing)
        with self._lock:
            if number == self._number:
                self._signers.update(signers)

    def _all(self) -> Snapshot:
        with self._lock:
            if self._is_stale or self._snapshot is None:
                self._snapshot = Snapshot.take(self._snapshot)
                self._is_stale = False
            return self._snapshot


config_cache = ConfigCache()
