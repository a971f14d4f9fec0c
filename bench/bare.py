"""Provide the least server and client: a web application, and POST requests of plain libcurl.

``application`` only reads the request, to measure the web server alone.

python -m bench.bare URL COUNT RATE sends requests from a minimal event loop, and prints
milliseconds per request as JSON: CPU time of this process, and duration. RATE is requests per
second; 0: as fast as possible.
"""

import io
import json
import select
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import pycurl

from bench.adapters import body

RESPONSE = b'{"id":"msg_0000000000000","due_at":"2000-01-01T00:00:00.000Z"}'
RESPONSE_HEADERS = [("Content-Type", "application/json"), ("Content-Length", str(len(RESPONSE)))]
CONCURRENCY = 64
HEADERS = [
    "Content-Type: application/json",
    "User-Agent: bare",
    "Webhook-Id: msg_0000000000000",
    "Webhook-Timestamp: 1700000000",
    "Webhook-Signature: v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
]
WARM_UP = 500
POLL_S = 0.01


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    environ["wsgi.input"].read()
    start_response("202 Accepted", RESPONSE_HEADERS)
    return [RESPONSE]


class Loop:
    """Keeps as many requests in flight as there are handles, until `count` are answered."""

    def __init__(self, url: str) -> None:
        self.multi = pycurl.CurlMulti()
        self.epoll = select.epoll()
        self.watched: set[int] = set()
        self.multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self.handles = [self._handle(url) for _ in range(CONCURRENCY)]
        self.number = 0
        self.took_ms: list[float] = []

    def run(self, count: int, rate: float = 0.0) -> None:
        started = done = 0
        idle = list(self.handles)
        begin = time.monotonic()
        while done < count:
            allowed = int((time.monotonic() - begin) * rate) + 1 if rate else count
            before = started
            while idle and started < min(count, allowed):
                self._start(idle.pop())
                started += 1
            if started > before:
                self.multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            wait = begin + started / rate - time.monotonic() if rate else POLL_S
            for descriptor, _ in self.epoll.poll(min(max(wait, 0.0), POLL_S)):
                self.multi.socket_action(descriptor, 0)
            _, good, bad = self.multi.info_read()
            if bad:
                raise SystemExit(f"A request failed: {bad[0][2]}")
            for handle in good:
                self.took_ms.append(handle.getinfo(pycurl.TOTAL_TIME) * 1e3)
                self.multi.remove_handle(handle)
                idle.append(handle)
            done += len(good)

    def _start(self, handle: pycurl.Curl) -> None:
        self.number += 1
        handle.setopt(pycurl.POSTFIELDS, body(self.number))
        handle.setopt(pycurl.WRITEDATA, io.BytesIO())
        self.multi.add_handle(handle)

    def _handle(self, url: str) -> pycurl.Curl:
        handle = pycurl.Curl()
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.HTTPHEADER, HEADERS)
        handle.setopt(pycurl.PROXY, "")
        return handle

    def _watch(self, what: int, descriptor: int, multi: object, data: object) -> None:
        if what == pycurl.POLL_REMOVE:
            self.epoll.unregister(descriptor)
            self.watched.discard(descriptor)
            return
        mask = (select.EPOLLIN if what & pycurl.POLL_IN else 0) | (
            select.EPOLLOUT if what & pycurl.POLL_OUT else 0
        )
        if descriptor in self.watched:
            self.epoll.modify(descriptor, mask)
        else:
            self.epoll.register(descriptor, mask)
            self.watched.add(descriptor)


def main(url: str, count: int, rate: float) -> None:
    loop = Loop(url)
    loop.run(WARM_UP)
    loop.took_ms.clear()
    before = time.process_time()
    loop.run(count, rate)
    cpu_ms = (time.process_time() - before) / count * 1e3
    print(json.dumps({"cpu": cpu_ms, "took_ms": loop.took_ms}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
