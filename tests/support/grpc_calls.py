"""Call the gRPC server's handlers in the test's process, with a client that the test controls."""

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from channels_app.models import ApiKey, Consumer
from delivery.grpc.hookstation_pb2 import Delivery, ReceiveRequest, ReceiveResponse, Subscription
from delivery.grpc.receive import ReceiveStream
from delivery.grpc.threads import Threads
from tests.support.factories import bearer

T = TypeVar("T")


def meta_of(key: ApiKey) -> dict[str, str]:
    """Return what authentication reads of a call with this key."""
    return {"HTTP_AUTHORIZATION": bearer(key)}


class TestThread(Threads):
    """Runs in the test's thread, and thus in its transaction, what waits for the database."""

    __test__ = False

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._pending = 0

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        done = Future[T]()

        def finish() -> None:
            try:
                done.set_result(work(*arguments))
            except Exception as error:  # for the coroutine that waits
                done.set_exception(error)

        self._pending += 1
        self._work.put(finish)
        try:
            return await asyncio.shield(asyncio.wrap_future(done))
        finally:
            self._pending -= 1

    def submit(self, work: Callable[..., Any], *arguments: Any) -> None:
        self._work.put(lambda: work(*arguments))

    async def at_rest(self) -> None:
        """Let the coroutines run until all of them only wait for the client."""
        idle = 0
        while idle < 50:
            idle = 0 if self._pending else idle + 1
            await asyncio.sleep(0)

    def work_off(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in another thread, and its work here until it has ended."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(asyncio.run, coroutine)
            running.add_done_callback(lambda _: self._work.put(None))
            while (work := self._work.get()) is not None:
                work()
        return running.result()


class ReceiveCall:
    """One call of Receive, whose client reads only while ``reads`` is set."""

    def __init__(
        self, threads: Threads, key: ApiKey, consumer: Consumer, credits: int, **options: Any
    ) -> None:
        self.reads = asyncio.Event()
        self.got: list[Delivery] = []
        self.responses: list[ReceiveResponse] = []
        self._requests: asyncio.Queue[ReceiveRequest] = asyncio.Queue()
        slug, name = consumer.channel.slug, consumer.client_id
        at = Subscription(channel=slug, consumer=name, **options)
        self.send(subscription=at, credits=credits)
        self.stream = ReceiveStream(meta_of(key), self._write, threads)
        self.task = asyncio.create_task(self.stream.serve(self._sent()))

    def send(self, **fields: Any) -> None:
        """Send a request."""
        self._requests.put_nowait(ReceiveRequest(**fields))

    async def _sent(self) -> AsyncIterator[bytes]:
        while True:
            yield (await self._requests.get()).SerializeToString()

    async def _write(self, content: bytes) -> None:
        response = ReceiveResponse.FromString(content)
        if response.ByteSize():
            await self.reads.wait()
        self.got += response.deliveries
        self.responses.append(response)

    async def messages(self, count: int) -> list[Delivery]:
        """Return all messages as soon as ``count`` came."""
        while len(self.got) < count and not self.task.done():
            await asyncio.sleep(0.001)
        return self.got

    async def end(self) -> None:
        """Break the connection. Raises what refused the stream."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
