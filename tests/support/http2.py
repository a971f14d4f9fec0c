"""Provide HTTP/2 endpoints over TLS: one served by granian, and one that breaks a stream off."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

from tests.support.certificates import certificate, server_context

_PATIENCE_S = 120.0


class Http2Receiver:
    """Responds to every POST with 200 and the reversed body, and on ``/big`` with 200 kB.

    A client that trusts `ca_file` accepts it. ``with`` starts and stops it.
    """

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.ca_file = str(certificate()[0])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(_PATIENCE_S)

    def url(self, path: str) -> str:
        """Return the URL of a path."""
        return f"https://127.0.0.1:{self.port}{path}"

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        chain, key = certificate()
        self._server = Server(
            _answer,
            address="127.0.0.1",
            port=self.port,
            interface=Interfaces.RSGI,
            http=HTTPModes.auto,
            ssl_cert=chain,
            ssl_key=key,
            log_enabled=False,
        )
        self._loop.run_until_complete(self._server.serve())
        self._loop.close()


async def _answer(scope: Any, protocol: Any) -> None:
    body = await protocol()
    protocol.response_bytes(200, [], b"x" * 200_000 if scope.path == "/big" else body[::-1])


def _frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    length = len(payload).to_bytes(3, "big")
    return length + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


_SETTINGS = _frame(0x4, 0)
# END_HEADERS without END_STREAM; ":status: 200" is entry 8 of HPACK's static table.
_HEADERS_200 = _frame(0x1, 1, b"\x88", 0x4)
_INTERNAL_ERROR = (2).to_bytes(4, "big")
RST_STREAM = _frame(0x3, 1, _INTERNAL_ERROR)
GOAWAY = _frame(0x7, 0, (0).to_bytes(4, "big") + _INTERNAL_ERROR)


@contextmanager
def stream_that_ends_with(ending: bytes) -> Iterator[str]:
    """Yield the URL of an endpoint that sends the headers of a 200, ``ending``, and closes."""
    context = server_context()
    context.set_alpn_protocols(["h2"])

    def serve() -> None:
        # Listening ends, or the client closes first.
        with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as peer:
            peer.settimeout(_PATIENCE_S)
            peer.sendall(_SETTINGS)
            received = b""
            while b'{"n": 1}' not in received:  # the body of `a_call`
                received += peer.recv(65536)
            peer.sendall(_HEADERS_200 + ending)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65536):  # closing with data unread would send a reset
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/"
        thread.join(_PATIENCE_S)
