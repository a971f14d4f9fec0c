"""A minimal gRPC client of the broker, which reads no faster than a test asks."""

import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from delivery.grpc.hookstation_pb2 import (
    Delivery,
    Problem,
    PublishBatch,
    Published,
    PublishRequest,
    PublishResult,
    PublishResults,
    ReceiveRequest,
    ReceiveResponse,
    Settlement,
    SettlementResult,
    Subscription,
)
from tests.support import ports
from tests.support.broker import Broker, descendants, wait_until

SERVICE = "/hookstation.v1.Hookstation/"
PATIENCE_S = 60.0
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Otherwise the window of a client that does not read grows with the machine's load.
    ("grpc.http2.bdp_probe", 0),
)


def setting() -> dict[str, str]:
    """The setting of a broker that serves gRPC on a free port."""
    return {"HOOKSTATION_GRPC_ADDRESS": f"127.0.0.1:{ports.claim()}"}


class Client:
    """A connection to the gRPC server of a broker."""

    def __init__(self, target: str, key: str | None, channel: grpc.Channel | None = None) -> None:
        self.channel = channel or grpc.insecure_channel(target, OPTIONS)
        self.metadata = () if key is None else (("authorization", f"Bearer {key}"),)

    @classmethod
    def of(cls, broker: Broker, key: str | None = "") -> "Client":
        """A client with this key; "" is the broker's own, None is no key."""
        target = broker.environment["HOOKSTATION_GRPC_ADDRESS"]
        return cls(target, broker.key if key == "" else key)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *raised: object) -> None:
        self.channel.close()

    def is_served(self) -> bool:
        """Whether the server answers."""
        try:
            self.raw("Publish", b"")
        except grpc.RpcError as error:
            return code_of(error) is not grpc.StatusCode.UNAVAILABLE
        return True

    def raw(self, call: str, content: bytes) -> bytes:
        """The response to one request of any content. Raises grpc.RpcError."""
        made: Any = self.channel.unary_unary(SERVICE + call)
        answer: bytes = made(content, metadata=self.metadata, timeout=PATIENCE_S)
        return answer

    def publish(self, channel: str, body: bytes = b"{}", **options: Any) -> Published:
        """Publish one message. Raises grpc.RpcError."""
        request = PublishRequest(channel=channel, body=body, **options)
        return Published.FromString(self.raw("Publish", request.SerializeToString()))

    def publish_stream(self, *batches: list[PublishRequest]) -> list[list[PublishResult]]:
        """The results for each batch of one stream. Raises grpc.RpcError."""
        made = self.channel.stream_stream(
            f"{SERVICE}PublishStream",
            request_serializer=PublishBatch.SerializeToString,
            response_deserializer=PublishResults.FromString,
        )
        requests = iter([PublishBatch(messages=batch) for batch in batches])
        answers = made(requests, metadata=self.metadata, timeout=PATIENCE_S)
        return [list(answer.results) for answer in answers]

    @contextmanager
    def receive(
        self, channel: str, consumer: str = "all", *, credits: int = 0, **options: Any
    ) -> Iterator["Receiving"]:
        """Open a stream; it is cancelled at the end of the block."""
        subscription = Subscription(channel=channel, consumer=consumer, **options)
        stream = Receiving(self, [ReceiveRequest(subscription=subscription, credits=credits)])
        try:
            yield stream
        finally:
            stream.cancel()


class Receiving:
    """A stream of the call Receive."""

    def __init__(self, client: Client, requests: list[ReceiveRequest]) -> None:
        self._outgoing: queue.SimpleQueue[ReceiveRequest | None] = queue.SimpleQueue()
        for request in requests:
            self._outgoing.put(request)
        made = client.channel.stream_stream(
            f"{SERVICE}Receive",
            request_serializer=ReceiveRequest.SerializeToString,
            response_deserializer=ReceiveResponse.FromString,
        )
        self.call: Any = made(iter(self._outgoing.get, None), metadata=client.metadata)

    def send(self, *settlements: Settlement, credits: int = 0) -> None:
        """Send one request."""
        self._outgoing.put(ReceiveRequest(settlements=settlements, credits=credits))

    def settle(self, action: Settlement.Action, *leases: str, **options: Any) -> SettlementResult:
        """Settle leases; returns the result, and fails if something else comes before."""
        self.send(Settlement(id=7, action=action, leases=leases, **options))
        response = self.next()
        assert [result.id for result in response.results] == [7], response
        return response.results[0]

    def close(self) -> None:
        """Close the client's side."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        """End the call at once."""
        self._outgoing.put(None)
        self.call.cancel()

    def next(self) -> ReceiveResponse:
        """The next response that is not empty. Raises grpc.RpcError and StopIteration."""
        watchdog = threading.Timer(PATIENCE_S, self.call.cancel)
        watchdog.start()
        try:
            while True:
                response: ReceiveResponse = next(self.call)
                if response.ByteSize():
                    return response
        finally:
            watchdog.cancel()

    def messages(self, count: int) -> list[Delivery]:
        """The next ``count`` messages, or more if they come together."""
        found: list[Delivery] = []
        while len(found) < count:
            found += self.next().deliveries
        return found

    def error(self) -> grpc.RpcError:
        """The error that ends the stream."""
        try:
            while True:
                self.next()
        except grpc.RpcError as error:
            return error


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status code of a failed call."""
    call: Any = error  # the errors of calls are calls
    code: grpc.StatusCode = call.code()
    return code


def problem_of(error: grpc.RpcError) -> Problem:
    """The problem in the trailing metadata of a refused call."""
    call: Any = error
    found = dict(call.trailing_metadata() or ())
    return Problem.FromString(found["hookstation-problem-bin"])


def server_of(broker: Broker) -> int | None:
    """Return the process id of the gRPC server, if it runs. A fork has a title with spaces."""
    assert broker.process is not None
    for pid in descendants(broker.process.pid):
        try:
            words = re.split(b"[\0 ]", Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            continue
        # Not the shell that is to become the server.
        if b"grpc" in words and b"python" in words[0]:
            return pid
    return None


def wait_for_grpc(broker: Broker) -> None:
    """Wait until the gRPC server of a started broker answers."""
    with Client.of(broker) as client:
        wait_until(client.is_served, PATIENCE_S, "gRPC is not served", broker.log)
