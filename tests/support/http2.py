"""Provide an HTTP/2 endpoint over TLS, served by granian in a thread of this process."""

import asyncio
import socket
import threading
import time
from typing import Any, Self

from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

from tests.support.certificates import certificate

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
