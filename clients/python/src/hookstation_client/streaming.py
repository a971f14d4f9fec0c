"""Choose between a stream and the REST API for a worker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookstation_client.grpc.working import Streams

logger = logging.getLogger("hookstation_client.worker")

STREAM_RETRY_S = 10.0
"""Seconds for which a worker uses the REST API after its stream has ended."""


@contextlib.contextmanager
def streams_of(url: str) -> Iterator[Streams | None]:
    """The connection to a gRPC server; None without an address, and without grpcio."""
    if not url:
        yield None
        return
    try:
        from hookstation_client.grpc.working import Streams
    except ImportError as error:
        logger.warning("using the REST API, install hookstation-client[grpc]: %s", error)
        yield None
        return
    with Streams(url) as streams:
        yield streams
