"""Receive a channel's messages on this machine, as a temporary pull consumer (S2-62)."""

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import requests

from delivery.core.outcome import parse_retry_after

TIMEOUT_S = 60.0
WAIT_S = 20
LEASE_S = 60
FORWARD_S = 30.0
PAUSE_S = 1.0
AWAY = {429, 502, 503, 504}


class KeyRefused(Exception):
    """The broker refuses this key; the message gives the reason."""


class ReceivedMessage(NamedTuple):
    """A message and its result here."""

    message: dict[str, Any]
    body: bytes
    status: int | None
    """Status code of the forwarded request; None without forwarding, or without a response."""
    is_done: bool


@dataclass(slots=True)
class Listener:
    """Registers a consumer, receives, forwards, acknowledges, and retires the consumer."""

    url: str
    channel: str
    name: str
    key: str = field(repr=False)
    forward: str | None = None
    event_types: tuple[str, ...] = ()
    show: Callable[[ReceivedMessage], None] = lambda received: None
    _session: requests.Session = field(default_factory=requests.Session)

    @property
    def _place(self) -> str:
        return f"/channels/{self.channel}/consumers/{self.name}"

    def begin(self) -> None:
        """Register a new consumer. Raises KeyRefused."""
        values = {"mode": "pull", "event_types": list(self.event_types)}
        values["description"] = "Somebody listens on their machine."
        answer = self._call("PUT", self._place, values, {"If-None-Match": "*"})
        if answer.status_code == 412:
            raise KeyRefused(f"{self.channel} has a consumer {self.name} already: choose another.")
        _check(answer)

    def listen(self) -> None:
        """Receive once and handle the messages. Raises KeyRefused."""
        asked = {"wait_s": WAIT_S, "lease_s": LEASE_S, "max": 10, "worker_id": self.name}
        try:
            answer = self._call("POST", f"{self._place}/receive", asked)
        except requests.RequestException:
            time.sleep(PAUSE_S)  # the broker is unavailable or restarting
            return
        if answer.status_code in AWAY:
            wait_s = parse_retry_after(answer.headers.get("Retry-After"), datetime.now(UTC))
            time.sleep(PAUSE_S if wait_s is None else wait_s)
            return
        _check(answer)
        for message in answer.json()["messages"]:
            self._take(message)

    def end(self) -> None:
        """Retire the consumer, so that no messages wait for it. Raises KeyRefused."""
        _check(self._call("DELETE", self._place))

    def _take(self, message: dict[str, Any]) -> None:
        body = self._body(message)
        status = self._passed_on(message, body) if self.forward else None
        is_done = self.forward is None or (status is not None and 200 <= status < 300)
        settlement = {"leases": [message["lease"]]} | (
            {} if is_done else {"error": f"answered {status}"}
        )
        _check(self._call("POST", "/leases/ack" if is_done else "/leases/nack", settlement))
        self.show(ReceivedMessage(message, body, status, is_done))

    def _body(self, message: dict[str, Any]) -> bytes:
        if "body" in message:
            return str(message["body"]).encode()
        if "body_base64" in message:
            return base64.b64decode(message["body_base64"])
        answer = self._call("GET", f"/messages/{message['id']}/body")
        _check(answer)
        return answer.content

    def _passed_on(self, message: dict[str, Any], body: bytes) -> int | None:
        """Forward a message as to a push consumer, without a signature since there is no secret."""
        headers = {
            **message["headers"],
            "webhook-id": message["id"],
            "webhook-timestamp": str(int(time.time())),
            "Hookstation-Event-Type": message["event_type"],
            "Hookstation-Attempt": str(message["attempt"]),
        }
        if message["content_type"]:
            headers["Content-Type"] = message["content_type"]
        try:
            return requests.post(
                self.forward or "",
                data=body,
                headers=headers,
                timeout=FORWARD_S,
                allow_redirects=False,
            ).status_code
        except requests.RequestException:
            return None

    def _call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> requests.Response:
        return self._session.request(
            method,
            f"{self.url}/api/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.key}", **(headers or {})},
            timeout=TIMEOUT_S,
            allow_redirects=False,
        )


def _check(answer: requests.Response) -> None:
    if answer.ok:
        return
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"{answer.url} answered {answer.status_code}; is that the broker?"
    raise KeyRefused(detail)
