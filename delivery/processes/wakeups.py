"""Send datagrams to the processes that should check now. They are hints: polling finds the rest.

Pumps are told of accepted messages, and of due deliveries for push consumers. Web processes are
told of due deliveries for pull consumers, whose receivers wait there (long_polling.py).
"""

import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from django.db import DatabaseError, transaction

from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.conf import conf
from delivery.core import recipients
from delivery.models import PumpSlot
from delivery.processes import registration

Address: TypeAlias = tuple[str, int]
ACCEPTED, DUE, CHANGED, WAITING = b"accepted", b"due", b"changed", b"waiting"
TAKE, TAKING = b"take", b"taking"
"""Datagram types. All but CHANGED are followed by ids, ACCEPTED and TAKE first by the priority
digit."""
REFRESH_S = 1.0
QUIET_REFRESH_S = 2.0
"""Refresh interval for a process that only reports waiting receivers."""
FORGET_S = 5.0
"""How long a pump assumes that receivers wait in a web process, which repeats it every second."""
MAX_DATAGRAM = 1400
"""Bytes; fits one Ethernet frame. Longer lists are split or cut: polling finds the rest."""


@dataclass(slots=True)
class Hints:
    """The combined contents of the datagrams since the last read."""

    accepted: bool = False
    message_ids: dict[int, int] = field(default_factory=dict)
    """Accepted messages, as far as they were named, with their priorities."""
    consumer_ids: set[int] = field(default_factory=set)
    waiting: dict[Address, set[int]] = field(default_factory=dict)
    """Consumers whose receivers wait in a web process, by its address."""
    taking: dict[Address, set[int]] = field(default_factory=dict)
    """Channels whose new messages receivers of that web process take before a fan-out."""
    take: list[tuple[int, int, set[int]]] = field(default_factory=list)
    """Channel, priority and ids of such messages."""
    changed: bool = False
    """Whether a process waits for pumps to apply the configuration."""


class Listener:
    """Receives a process's wake-ups: a UDP socket on an ephemeral port of the wake address."""

    def __init__(self) -> None:
        family = socket.AF_INET6 if ":" in conf().wake_bind else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind((conf().wake_bind, 0))
        host, port = self.socket.getsockname()[:2]
        self.address = f"{host} {port}"

    def read(self) -> Hints:
        """Return all hints that arrived, merged. Ignores unknown datagrams."""
        hints = Hints()
        while True:
            try:
                datagram, sender = self.socket.recvfrom(MAX_DATAGRAM)
            except (BlockingIOError, ConnectionError):
                return hints
            word, _, numbers = datagram.partition(b" ")
            ids = {int(number) for number in numbers.split() if number.isdigit()}
            if word[:-1] == ACCEPTED and word[-1:].isdigit():
                hints.accepted = True
                hints.message_ids |= dict.fromkeys(ids, int(word[-1:]))
            elif word == DUE:
                hints.consumer_ids |= ids
            elif word == WAITING:
                hints.waiting.setdefault(sender[:2], set()).update(ids)
            elif word == TAKING:
                hints.taking.setdefault(sender[:2], set()).update(ids)
            elif word[:-1] == TAKE and word[-1:].isdigit() and ids:
                channel_id = int(numbers.split()[0])
                hints.take.append((channel_id, int(word[-1:]), ids - {channel_id}))
            elif word == CHANGED:
                hints.changed = True

    def close(self) -> None:
        """Free the port."""
        self.socket.close()


class WaitingReceivers:
    """What a process knows of waiting receivers: in which web processes, for which ids.

    In pumps the ids are consumers, in web processes they are channels.
    """

    def __init__(self) -> None:
        self._until: dict[Address, dict[int, float]] = {}

    def note(self, notified: Mapping[Address, Collection[int]]) -> None:
        """Remember what web processes reported, for `FORGET_S`."""
        ticks = time.monotonic()
        for address, ids in notified.items():
            former = self._until.get(address, {}).items()
            lasting = {key: until for key, until in former if until > ticks}
            self._until[address] = lasting | dict.fromkeys(ids, ticks + FORGET_S)

    def of(self, wanted: Collection[int]) -> dict[Address, list[int]]:
        """Return those of the wanted ids for which receivers wait, by web process."""
        if not self._until:
            return {}
        ticks, by_address = time.monotonic(), dict[Address, list[int]]()
        for address, until in list(self._until.items()):
            if max(until.values(), default=0.0) <= ticks:
                del self._until[address]  # the process is gone, or has no waiting receivers
            elif ids := [key for key in wanted if until.get(key, 0.0) > ticks]:
                by_address[address] = ids
        return by_address


class WakeupSender:
    """Sends wake-ups to pumps and web processes.

    Reads their addresses from the slots, at most every ``REFRESH_S`` seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._addresses: dict[int, Address] = {}
        self._web: list[Address] = []
        self._sockets: dict[int, socket.socket] = {}

    def accepted(self, channel_id: int, priority: int, message_ids: Iterable[int]) -> None:
        """Tell one pump to fan out stored messages of this channel."""
        generation = recipients.owning_consumer(channel_id, self._pumps())
        if generation is not None:
            self._send(generation, b"%b%d" % (ACCEPTED, priority), message_ids)

    def due(self, consumer_ids: Iterable[int], *, but: int = 0) -> None:
        """Tell the pumps that serve these consumers, or receivers, that something is due.

        Except the pump of the generation ``but``, which knows.
        """
        addresses = self._pumps()
        consumers = config_cache.consumers()
        by_pump: dict[int, list[int]] = {}
        pulling = []
        for consumer_id in consumer_ids:
            consumer = consumers.get(consumer_id)
            if pulls(consumer):
                pulling.append(consumer_id)
                continue
            for generation in recipients.owners(
                consumer_id, addresses, consumer.pump_count if consumer else 1
            ):
                if generation != but:
                    by_pump.setdefault(generation, []).append(consumer_id)
        for generation, ids in by_pump.items():
            self._send(generation, DUE, ids)
        if pulling:
            self.receivers(dict.fromkeys(self._web, pulling))

    def receivers(self, waiting: dict[Address, list[int]]) -> None:
        """Tell the web processes where receivers wait that pull consumers have something due."""
        for address, ids in waiting.items():
            self._send_to(address, DUE, ids)

    def waiting(self, listener: Listener, consumer_ids: Collection[int], *, asks: bool) -> None:
        """Tell all pumps that receivers of these consumers wait at the address of ``listener``.

        Without ``asks`` it uses the known addresses, however old they are.
        """
        addresses = self._pumps(QUIET_REFRESH_S) if asks else self._addresses
        for address in list(addresses.values()):
            for datagram in _datagrams(WAITING, consumer_ids):
                _send(listener.socket, datagram, address)

    def changed(self) -> None:
        """Tell all pumps that a process waits until they have applied a configuration change."""
        for generation in self._pumps():
            self._send(generation, CHANGED, ())

    def close(self) -> None:
        """Forget the pumps and close the sockets; the next wake-up opens them again."""
        with self._lock:
            self._read_at = float("-inf")
            while self._sockets:
                self._sockets.popitem()[1].close()

    def taking(self, listener: Listener, channel_ids: Collection[int]) -> None:
        """Tell all web processes that receivers here take new messages of these channels."""
        for address in list(self._web):
            for datagram in _datagrams(TAKING, channel_ids):
                _send(listener.socket, datagram, address)

    def take(
        self, address: Address, channel_id: int, priority: int, message_ids: Iterable[int]
    ) -> None:
        """Tell a receiver waiting at this address to take stored messages of the channel."""
        self._send_to(address, b"%b%d" % (TAKE, priority), [channel_id, *message_ids])

    def _pumps(self, refresh_s: float = REFRESH_S) -> dict[int, Address]:
        if time.monotonic() - self._read_at > refresh_s and self._lock.acquire(blocking=False):
            # One thread reads; the others use the known addresses.
            try:
                self._read_at = time.monotonic()
                slots = registration.listening()
                self._addresses = {
                    slot.generation: _address(slot.wake_address)
                    for slot in slots
                    if slot.kind == PumpSlot.Kind.PUMP
                }
                self._web = [
                    _address(slot.wake_address) for slot in slots if slot.kind == PumpSlot.Kind.WEB
                ]
            finally:
                self._lock.release()
        return self._addresses

    def _send(self, generation: int, word: bytes, ids: Iterable[int]) -> None:
        if (address := self._addresses.get(generation)) is not None:
            self._send_to(address, word, ids)

    def _send_to(self, address: Address, word: bytes, ids: Iterable[int]) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        if family not in self._sockets:
            self._sockets[family] = socket.socket(family, socket.SOCK_DGRAM)
            self._sockets[family].setblocking(False)
        _send(self._sockets[family], next(_datagrams(word, ids)), address)


wakeup_sender = WakeupSender()


def pulls(consumer: ConsumerConfig | None) -> bool:
    """Whether receivers take the consumer's deliveries; pumps never do."""
    return consumer is not None and consumer.mode == "pull"


def notify_pumps(consumer_ids: Iterable[int]) -> None:
    """Tell the pumps or receivers of these consumers to check now; they poll anyway."""
    if not conf().wake:
        return
    try:
        wakeup_sender.due(consumer_ids)
    except DatabaseError:
        return  # the requested change is stored


def notify_after_commit(consumer_ids: Collection[int]) -> None:
    """Do so when the transaction commits; at once outside a transaction."""
    if not consumer_ids:
        return
    transaction.on_commit(partial(notify_pumps, consumer_ids), robust=True)


def _datagrams(word: bytes, ids: Iterable[int]) -> Iterator[bytes]:
    """Yield the datagrams needed for all ids; one without ids if there are none."""
    datagram = word
    for number in ids:
        part = b" %d" % number
        if len(datagram) + len(part) > MAX_DATAGRAM:
            yield datagram
            datagram = word
        datagram += part
    yield datagram


def _send(sender: socket.socket, datagram: bytes, address: Address) -> None:
    try:
        sender.sendto(datagram, address)
    except OSError:
        return  # no receiver or a full buffer: the process polls anyway


def _address(text: str) -> Address:
    host, _, port = text.rpartition(" ")
    return host, int(port)
