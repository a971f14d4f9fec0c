"""Serve scripted consumers on one port, and count how often each accepted each message."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from bench.adapters import BenchError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno"
DOWN = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
GARBAGE = b"\x00\xff no protocol at all\r\n\r\n"
SLOW_S = 0.3
HANG_S = 3600.0
PERIOD_S, DOWN_S = 20.0, 5.0
"""A flapping consumer is down for DOWN_S at the start of each period."""
START_S = 10.0

Answer = Callable[[random.Random], Awaitable[bytes]]


async def _fast(chance: random.Random) -> bytes:
    return OK


async def _slow(chance: random.Random) -> bytes:
    await asyncio.sleep(SLOW_S)
    return OK


async def _failing(chance: random.Random) -> bytes:
    return FAILED if chance.random() < 0.2 else OK


async def _hanging(chance: random.Random) -> bytes:
    if chance.random() < 0.05:
        await asyncio.sleep(HANG_S)
    return OK


async def _flapping(chance: random.Random) -> bytes:
    return DOWN if time.monotonic() % PERIOD_S < DOWN_S else OK


async def _garbage(chance: random.Random) -> bytes:
    return GARBAGE if chance.random() < 0.2 else OK


SCRIPTS: Mapping[str, Answer] = {
    "fast": _fast,
    "slow": _slow,
    "failing": _failing,
    "hanging": _hanging,
    "flapping": _flapping,
    "garbage": _garbage,
}
SETTINGS: Mapping[str, Any] = {
    "timeout_ms": 2000,
    "retry": [1, 2, 4],
    "max_attempts": 6,
    "max_in_flight": 32,
}


@dataclass(slots=True)
class Consumers:
    """All consumers, served by one thread."""

    seed: int
    taken: dict[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter[str]() for name in SCRIPTS}
    )
    """By consumer: how often each message was answered with 200."""
    calls: Counter[str] = field(default_factory=Counter)
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _ready: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(default_factory=threading.Thread)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._ready.wait(START_S):
            raise BenchError("The consumers did not start.")
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def url(self, name: str) -> str:
        """URL of a consumer."""
        return f"http://127.0.0.1:{self.port}/{name}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        server = self._loop.run_until_complete(serving)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chance = random.Random(self.seed + sum(self.calls.values()))
        try:
            while await self._exchange(reader, writer, chance):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the broker was killed, or the soak test ended
        finally:
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random
    ) -> bool:
        """Handle one request; returns whether the connection stays open."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        await reader.readexactly(int(headers.get("content-length", "0")))
        name = first.split()[1].strip("/")
        self.calls[name] += 1
        answer = await SCRIPTS[name](chance)
        writer.write(answer)
        await writer.drain()
        if answer is OK:
            self.taken[name][headers["webhook-id"]] += 1
        return answer is not GARBAGE
