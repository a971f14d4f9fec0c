"""A client generated from the OpenAPI document by openapi-python-client, used as by a person."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.broker import Broker

pytestmark = pytest.mark.e2e

PACKAGE = "hookstation_generated"
GENERATE_S = 300


@pytest.fixture(scope="module")
def folder(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generate the package without a warning; return its folder."""
    folder = tmp_path_factory.mktemp("generated")
    address = broker.base.removesuffix("/api/v1") + "/api/schema/?format=json"
    (folder / "openapi.json").write_bytes(requests.get(address, timeout=60).content)
    # Do not format the package: this test does not need a formatter.
    (folder / "config.yml").write_text("post_hooks: []\n")
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("openapi-python-client")),
            *("generate", "--path", "openapi.json", "--config", "config.yml"),
            *("--meta", "none", "--output-path", PACKAGE, "--fail-on-warning"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=GENERATE_S,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "warning" not in said.lower(), said
    return folder


@pytest.fixture
def generated(
    folder: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> Iterator["Generated"]:
    monkeypatch.syspath_prepend(folder)
    made = Generated(broker)
    with made.client:
        yield made


class Generated:
    """The package, with a client that has an API key."""

    def __init__(self, broker: Broker) -> None:
        self.models = importlib.import_module(f"{PACKAGE}.models")
        self.types = importlib.import_module(f"{PACKAGE}.types")
        self.client = importlib.import_module(f"{PACKAGE}.client").AuthenticatedClient(
            base_url=broker.base.removesuffix("/api/v1"),
            token=broker.key,
            raise_on_unexpected_status=True,
        )

    def call(self, name: str, *path: str, **options: Any) -> Any:
        """Call the operation ``tag.operation``; return the response as the package's object."""
        module = importlib.import_module(f"{PACKAGE}.api.{name}")
        return module.sync(*path, client=self.client, **options)


def test_each_operation_is_a_function(folder: Path) -> None:
    document = json.loads((folder / "openapi.json").read_text())
    wanted = {
        described["operationId"].lower()
        for methods in document["paths"].values()
        for described in methods.values()
    }
    modules = {path.stem.replace("_", "") for path in (folder / PACKAGE / "api").glob("*/*.py")}
    assert wanted == modules - {"init"}


def test_publish_receive_and_acknowledge(generated: Generated) -> None:
    models, call = generated.models, generated.call
    call("channels.put_channel", "orders", body=models.ChannelSettings(description="Orders"))
    wanted = models.ConsumerSettings(mode=models.ConsumerSettingsMode.PULL)
    consumer = call("consumers.put_consumer", "orders", "packing", body=wanted)
    assert isinstance(consumer, models.ConsumerWithSecret)
    assert consumer.effective.max_attempts == 10

    published = call(
        "messages.publish_message",
        "orders",
        body=models.JsonObject.from_dict({"id": 7}),
        hookstation_event_type="order.paid",
        hookstation_priority=7,
        idempotency_key="order-7",
    )
    assert isinstance(published, models.Published)
    assert published.matched_consumers == 1
    file = generated.types.File(payload=BytesIO(b"\x00\xff"))
    call("messages.publish_message", "orders", body=file)

    taken: list[Any] = []
    while len(taken) < 2:
        wait = models.Receive(max_=10, wait_s=20, worker_id="packer-1")
        taken += call("pull.receive_messages", "orders", "packing", body=wait).messages
    paid = next(one for one in taken if one.id == published.id)
    assert (json.loads(paid.body), paid.event_type, paid.priority) == ({"id": 7}, "order.paid", 7)
    assert {one.body_base64 for one in taken if one.id != published.id} == {"AP8="}

    leases = [one.lease for one in taken]
    settled = call("pull.ack_leases", body=models.Acknowledgement(leases=leases))
    assert (sorted(settled.done), settled.failed) == (sorted(leases), [])
    message = call("messages.get_message", published.id)
    assert message.state == models.MessageState.FINISHED
    assert [one.state for one in message.deliveries] == [models.DeliveryState.DELIVERED]


def test_a_list_is_read_page_by_page(generated: Generated) -> None:
    models, call = generated.models, generated.call
    for number in range(5):
        settings = models.ChannelSettings(description="One of five")
        call("channels.put_channel", f"paged-{number}", body=settings)
    found: list[str] = []
    cursor: Any = generated.types.UNSET
    while cursor is not None:
        page = call("channels.list_channels", limit=2, cursor=cursor)
        found += [channel.slug for channel in page.items]
        cursor = page.next_
    assert {f"paged-{number}" for number in range(5)} <= set(found)
    assert len(found) == len(set(found))


def test_a_refusal_is_a_problem_with_a_code(generated: Generated) -> None:
    models, call = generated.models, generated.call
    unknown = call("channels.get_channel", "nowhere")
    assert isinstance(unknown, models.Problem)
    assert (unknown.status, unknown.code) == (404, "unknown_channel")
    refused = call("channels.put_channel", "orders", body=models.ChannelSettings(retention_days=0))
    assert (refused.code, [one.field for one in refused.errors]) == (
        "invalid_fields",
        ["retention_days"],
    )
