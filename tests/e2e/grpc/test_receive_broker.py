"""Receive over a gRPC stream: credits, settlements, order, and clients that are slow or gone."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from delivery.grpc.hookstation_pb2 import Delivery, Settlement
from tests.crash.counts import Counts
from tests.support.broker import Broker, receivers_resumed, wait_until
from tests.support.streams import PATIENCE_S, Client, Receiving, problem_of

pytestmark = pytest.mark.e2e


def publish(broker: Broker, channel: str, bodies: list[str], **options: Any) -> list[str]:
    """Publish a batch; returns the ids of its messages."""
    items = [{"body": text, **options} for text in bodies]
    found = broker.call("POST", f"/channels/{channel}/messages/batch", 207, json=items)
    return [item["id"] for item in found["items"]]


def delivery(broker: Broker, one: Delivery) -> dict[str, Any]:
    """The delivery as the REST API shows it."""
    found: dict[str, Any] = broker.call("GET", f"/deliveries/{one.delivery_id}", 200)
    return found


def in_state(broker: Broker, channel: str, state: str = "in_flight") -> int:
    """How many of the channel's deliveries are in this state."""
    counts = Counts(broker).read(
        "SELECT c.slug, d.state, COUNT(*) FROM delivery_delivery AS d"
        " JOIN channels_app_channel AS c ON c.id = d.channel_id GROUP BY c.slug, d.state"
    )
    return sum(int(number) for slug, at, number in counts if (slug, at) == (channel, state))


def test_messages_flow_as_far_as_credits_allow(
    broker: Broker, client: Client, channel: str
) -> None:
    ids = publish(broker, channel, [str(number) for number in range(30)])
    with client.receive(channel, credits=5) as stream:
        first = stream.messages(5)
        assert len(first) == 5
        # Were there more messages on the way, they would come before this result.
        assert not stream.settle(Settlement.EXTEND, first[0].lease, lease_s=60).failed
        assert in_state(broker, channel) == 5
        stream.send(credits=3)
        second = stream.messages(3)
        assert len(second) == 3
        stream.send(credits=100)
        rest = stream.messages(22)
    assert [one.id for one in first + second + rest] == ids


def test_a_settlement_without_an_id_reports_only_failures(
    broker: Broker, client: Client, channel: str
) -> None:
    publish(broker, channel, ["one"])
    with client.receive(channel, credits=1) as stream:
        (one,) = stream.messages(1)
        stream.send(Settlement(action=Settlement.ACK, leases=[one.lease]))
        stream.send(Settlement(action=Settlement.ACK, leases=["lse_made-up"]))
        response = stream.next()
        assert [result.id for result in response.results] == [0]
        assert [lost.lease for lost in response.results[0].failed] == ["lse_made-up"]
    assert delivery(broker, one)["state"] == "Delivered"


def test_a_waiting_stream_is_woken_by_another_process(
    broker: Broker, client: Client, channel: str
) -> None:
    """A message that comes while the stream queries, or before processes know each other, wakes
    nobody."""
    before = receivers_resumed(broker)
    with client.receive(channel, credits=1) as stream:

        def is_woken() -> bool:
            sent = publish(broker, channel, ["x"])
            (one,) = stream.messages(1)
            assert [one.id] == sent
            stream.send(Settlement(action=Settlement.ACK, leases=[one.lease]), credits=1)
            causes = receivers_resumed(broker) - before
            return causes["accepted"] + causes["wakeup"] > 0

        wait_until(is_woken, PATIENCE_S, "nobody is woken", broker.log)


def test_a_key_is_received_one_message_after_the_other(
    broker: Broker, client: Client, channel: str
) -> None:
    broker.call("PATCH", f"/channels/{channel}/consumers/all", 200, json={"ordering": True})
    ids = publish(broker, channel, [str(number) for number in range(8)], ordering_key="k")
    other = publish(broker, channel, ["other"], ordering_key="other")
    with client.receive(channel, credits=100) as stream:
        found = stream.messages(2)
        assert {one.id for one in found} == {ids[0], other[0]}
        got = [one for one in found if one.ordering_key == "k"]
        while len(got) < 8:
            stream.send(Settlement(action=Settlement.ACK, leases=[got[-1].lease]))
            (one,) = stream.messages(1)
            got.append(one)
    assert [one.id for one in got] == ids


def test_a_closed_stream_settles_what_it_was_sent(
    broker: Broker, client: Client, channel: str
) -> None:
    publish(broker, channel, [str(number) for number in range(50)])
    with client.receive(channel, credits=50) as stream:
        found = stream.messages(50)
        for one in found:
            stream.send(Settlement(action=Settlement.ACK, leases=[one.lease]))
        stream.close()
        with pytest.raises(StopIteration):
            stream.next()
        assert stream.call.code() is grpc.StatusCode.OK
    assert {delivery(broker, one)["state"] for one in found} == {"Delivered"}


def test_a_revoked_key_ends_its_stream(broker: Broker, client: Client, channel: str) -> None:
    broker.call("PUT", "/producers/revoked", 201, json={})
    asked = {"channels": [channel], "scopes": ["receive"]}
    made = broker.call("POST", "/producers/revoked/keys", 201, json=asked)
    publish(broker, channel, ["one"])
    with Client.of(broker, made["key"]) as other, other.receive(channel, credits=1) as stream:
        (one,) = stream.messages(1)
        broker.call("DELETE", f"/producers/revoked/keys/{made['key_id']}", 204)
        end = time.monotonic() + PATIENCE_S
        while not (code := _refusal(stream, one)):
            assert time.monotonic() < end, "the key still counts"
            time.sleep(0.2)
    assert code == "revoked_key"


def _refusal(stream: Receiving, one: Delivery) -> str:
    """The code of the problem with which an extension ends the stream; "" if it is done."""
    try:
        stream.settle(Settlement.EXTEND, one.lease)
    except grpc.RpcError as error:
        return problem_of(error).code
    return ""


def test_many_streams_share_the_messages(broker: Broker, client: Client, channel: str) -> None:
    ids = publish(broker, channel, [str(number) for number in range(600)])
    got: list[list[str]] = [[] for _ in range(4)]

    def close_when(stream: Receiving) -> None:
        done.wait(PATIENCE_S)
        stream.close()

    def work(number: int) -> None:
        with (
            Client.of(broker) as other,
            other.receive(channel, worker_id=f"w{number}") as stream,
        ):
            stream.settle(Settlement.ACK)
            all_open.wait(PATIENCE_S)
            stream.send(credits=20)
            stopper = threading.Thread(target=close_when, args=[stream])
            stopper.start()
            try:
                while True:
                    response = stream.next()
                    if response.deliveries and not got[number]:
                        all_hold.wait(PATIENCE_S)
                    if leases := [one.lease for one in response.deliveries]:
                        got[number] += [one.id for one in response.deliveries]
                        ack = Settlement(action=Settlement.ACK, leases=leases)
                        stream.send(ack, credits=len(leases))
                    if sum(map(len, got)) >= 600:
                        done.set()
            except StopIteration:
                stopper.join()

    done, all_open, all_hold = threading.Event(), threading.Barrier(4), threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sorted(itertools.chain.from_iterable(got)) == sorted(ids)
    assert in_state(broker, channel, "delivered") == 600


def test_an_idle_stream_stays_open_while_the_client_sends_pings(
    broker: Broker, channel: str
) -> None:
    """Clients send one each 30 seconds to notice a dead host; here each 10 seconds."""
    options = (("grpc.keepalive_time_ms", 10_000), ("grpc.http2.max_pings_without_data", 0))
    target = broker.environment["HOOKSTATION_GRPC_ADDRESS"]
    with (
        Client(target, broker.key, grpc.insecure_channel(target, options)) as client,
        client.receive(channel, credits=1) as stream,
    ):
        time.sleep(45)
        ids = publish(broker, channel, ["x"])
        assert [one.id for one in stream.messages(1)] == ids
