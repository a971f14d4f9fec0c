"""Wake-ups: a datagram to the pump that should look now. A hint; polling is what is relied on."""

import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError

from channels_app.directory import directory
from delivery.conf import conf
from delivery.rules import sharding
from delivery.runtime import slots

ACCEPTED, DUE, CHANGED = b"accepted", b"due", b"changed"
"""Words; the first two are followed by ids, and the first one by a digit: their priority."""
REFRESH_S = 1.0
MAX_DATAGRAM = 1400
"""Bytes; fits one Ethernet frame. Longer lists are cut: looking finds the rest."""


@dataclass(slots=True)
class Hints:
    """What the datagrams since the last look said."""

    accepted: bool = False
    message_ids: dict[int, int] = field(default_factory=dict)
    """Those that were accepted, as far as they were named, with their priorities."""
    consumer_ids: set[int] = field(default_factory=set)
    changed: bool = False
    """Somebody waits for pumps to follow the configuration."""


class Listener:
    """A pump's ear: a UDP socket on an ephemeral port of the wake address."""

    def __init__(self) -> None:
        family = socket.AF_INET6 if ":" in conf().wake_bind else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind((conf().wake_bind, 0))
        host, port = self.socket.getsockname()[:2]
        self.address = f"{host} {port}"

    def hear(self) -> Hints:
        """Everything that arrived, merged. Unknown datagrams are ignored."""
        hints = Hints()
        while True:
            try:
                datagram = self.socket.recv(MAX_DATAGRAM)
            except (BlockingIOError, ConnectionError):
                return hints
            word, _, numbers = datagram.partition(b" ")
            ids = {int(number) for number in numbers.split() if number.isdigit()}
            if word[:-1] == ACCEPTED and word[-1:].isdigit():
                hints.accepted = True
                hints.message_ids |= dict.fromkeys(ids, int(word[-1:]))
            elif word == DUE:
                hints.consumer_ids |= ids
            elif word == CHANGED:
                hints.changed = True

    def close(self) -> None:
        """Free the port."""
        self.socket.close()


class Bell:
    """Rings pumps. Knows them from their slots, read at most every ``REFRESH_S`` seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._addresses: dict[int, tuple[str, int]] = {}
        self._sockets: dict[int, socket.socket] = {}

    def accepted(self, channel_id: int, priority: int, message_ids: Iterable[int]) -> None:
        """Messages of this channel were stored: one pump should fan them out."""
        generation = sharding.owner(channel_id, self._pumps())
        if generation is not None:
            self._send(generation, b"%b%d" % (ACCEPTED, priority), message_ids)

    def due(self, consumer_ids: Iterable[int], *, but: int = 0) -> None:
        """These consumers have something to be sent now: tell the pumps that serve them.

        Without the pump of the generation ``but``, which knows.
        """
        addresses = self._pumps()
        views = directory.consumers()
        by_pump: dict[int, list[int]] = {}
        for consumer_id in consumer_ids:
            view = views.get(consumer_id)
            for generation in sharding.owners(
                consumer_id, addresses, view.pump_count if view else 1
            ):
                if generation != but:
                    by_pump.setdefault(generation, []).append(consumer_id)
        for generation, ids in by_pump.items():
            self._send(generation, DUE, ids)

    def changed(self) -> None:
        """Configuration changed, and somebody waits until all pumps follow it."""
        for generation in self._pumps():
            self._send(generation, CHANGED, ())

    def close(self) -> None:
        """Forget the pumps and free the sockets; the next ring opens them again."""
        with self._lock:
            self._read_at = float("-inf")
            while self._sockets:
                self._sockets.popitem()[1].close()

    def _pumps(self) -> dict[int, tuple[str, int]]:
        if time.monotonic() - self._read_at > REFRESH_S and self._lock.acquire(blocking=False):
            # One thread reads; the others ring those that are known.
            try:
                self._read_at = time.monotonic()
                self._addresses = {
                    slot.generation: _address(slot.wake_address)
                    for slot in slots.living()
                    if slot.wake_address
                }
            finally:
                self._lock.release()
        return self._addresses

    def _send(self, generation: int, word: bytes, ids: Iterable[int]) -> None:
        datagram = b" ".join([word, *[b"%d" % number for number in ids]])
        if len(datagram) > MAX_DATAGRAM:
            datagram = datagram[:MAX_DATAGRAM].rpartition(b" ")[0]
        address = self._addresses.get(generation)
        if address is None:
            return
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        if family not in self._sockets:
            self._sockets[family] = socket.socket(family, socket.SOCK_DGRAM)
            self._sockets[family].setblocking(False)
        try:
            self._sockets[family].sendto(datagram, address)
        except OSError:
            return  # nobody there or a full buffer: the pump polls


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(" ")
    return host, int(port)


bell = Bell()


def hurry(consumer_ids: Iterable[int]) -> None:
    """Tell the pumps of these consumers to look now. A hint: they look anyway."""
    if not conf().wake:
        return
    try:
        bell.due(consumer_ids)
    except DatabaseError:
        return  # what was asked for is stored


def on_message_accepted(
    sender: Any, *, channel_id: int, priority: int, message_ids: Sequence[int], **_: Any
) -> None:
    """Receiver of channels_app.signals.message_accepted."""
    if not conf().wake:
        return
    try:
        bell.accepted(channel_id, priority, message_ids)
    except DatabaseError:
        return  # the message is stored; a hint is not worth an error to its producer
