"""Make the database of a running broker unavailable, and available again."""

import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Self
from urllib.parse import urlsplit

WAIT_S = 1
"""Seconds that the broker waits for SQLite's lock; by default twenty."""
PATIENCE_S = 300
"""Seconds that tests wait: SQLite's writers form no queue, and on a busy disk a commit takes
seconds."""


class Lock:
    """SQLite: another connection holds the write lock. Reading works, in WAL mode."""

    can_read = True

    def __init__(self, url: str) -> None:
        self.url = f"{url}?timeout={WAIT_S}"
        self._path = url.removeprefix("sqlite:///")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    @contextmanager
    def away(self) -> Iterator[None]:
        """Prevent writes inside the context."""
        with closing(sqlite3.connect(self._path, PATIENCE_S, isolation_level=None)) as rival:
            rival.execute("BEGIN IMMEDIATE")
            yield
            rival.execute("ROLLBACK")


class Proxy:
    """MariaDB, MySQL: a TCP proxy to the server; cutting it ends the connections through it."""

    can_read = False
    delay_s = 0.0
    """Additional delay in each direction, in seconds."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), int(parts.port or 3306))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._sockets: set[socket.socket] = set()
        self._lost: set[socket.socket] = set()
        port = self._listener.getsockname()[1]
        place = f"{parts.username}:{parts.password}@127.0.0.1:{port}"
        self.url = parts._replace(netloc=place).geturl()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.clear()
        self._listener.close()
        self.cut()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Make the server unreachable inside the context."""
        self._open.clear()
        self.cut()
        try:
            yield
        finally:
            self._open.set()

    def vanish(self) -> None:
        """Stop forwarding without closing connections, so that clients do not notice."""
        self._lost |= self._sockets

    def cut(self) -> None:
        """Close open connections; new ones succeed."""
        self._end(*self._sockets)

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._open.is_set():
                client.close()
                continue
            server = socket.create_connection(self._server)
            self._sockets |= {client, server}
            if not self._open.is_set():
                # The proxy was cut meanwhile, possibly by a thread that did not see these
                # connections yet.
                self._end(client, server)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay_s)
                if source not in self._lost:
                    target.sendall(data)
        self._end(source, target)
        self._sockets.discard(source)
        self._lost.discard(source)
        source.close()


def between(url: str) -> Lock | Proxy:
    """Return what can make this database unavailable."""
    return Lock(url) if url.startswith("sqlite") else Proxy(url)
