"""One web server for all hostile requests, and checks of what each of them left behind."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from tests.support.wire import HEADERS_MS, Reply, Web, serving

SECRET = b"4711-nobody-shall-read-this"
"""Part of every hostile body; the log must not contain it."""
_numbers = count(1)


@pytest.fixture(scope="package")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The server, started by the first test that needs it."""
    patience = {"GRANIAN_HTTP1_HEADER_READ_TIMEOUT": f"{HEADERS_MS}"}
    with serving(tmp_path_factory.mktemp("web"), **patience) as started:
        yield started


@dataclass(frozen=True, slots=True)
class Door:
    """A channel of the test's own, which receives the hostile requests."""

    web: Web
    channel: str
    stored: list[bytes] = field(default_factory=list)
    """Bodies that the test meant to be accepted, in order."""

    @property
    def path(self) -> str:
        return f"/api/v1/channels/{self.channel}"

    def publish(self, *lines: str | bytes, body: bytes = SECRET) -> Reply:
        """Publish a message; its Content-Length precedes the other header lines."""
        length = f"Content-Length: {len(body)}"
        return self.web.send(f"{self.path}/messages", length, *lines, method="POST", body=body)

    def put(self, body: bytes, kind: str = "application/json", path: str = "") -> Reply:
        """Put the channel's configuration, or that of an object below it."""
        lines = (f"Content-Type: {kind}", f"Content-Length: {len(body)}")
        return self.web.send(self.path + path, *lines, method="PUT", body=body)

    def bodies(self) -> list[bytes]:
        """All stored bodies, oldest first."""
        found = self.web.call("GET", f"/channels/{self.channel}/messages?limit=200", 200)
        ids = [item["id"] for item in found["items"]]
        return [self.web.send(f"/api/v1/messages/{one}/body").body for one in reversed(ids)]


@pytest.fixture
def door(web: Web) -> Iterator[Door]:
    """After the test: the server still publishes, stored nothing else and logged no secret."""
    opened = Door(web, f"door-{next(_numbers)}")
    web.call("PUT", f"/channels/{opened.channel}", 201)
    before = len(web.log())
    yield opened
    assert opened.publish(body=b"as ever").status == 202
    assert opened.bodies() == [*opened.stored, b"as ever"]
    said = web.log()[before:]
    assert web.key.split("_")[2] not in said
    assert SECRET.decode() not in said
    assert "Traceback" not in said
