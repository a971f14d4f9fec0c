"""The reference driver: all that a client has to do, in plain HTTP with the library requests."""

from __future__ import annotations

import base64
import hmac
import os
import time
import uuid
from typing import Any

import requests
from lines import Refused, bytes_of, encoded, serve

URL = os.environ["HOOKSTATION_URL"] + "/api/v1"
TRIES = 8
TOLERANCE_S = 300
http = requests.Session()
http.trust_env = False
http.headers["Authorization"] = f"Bearer {os.environ['HOOKSTATION_KEY']}"


def call(method: str, path: str, **options: Any) -> requests.Response:
    """Call the API; retry without a response, and after a response that allows a retry."""
    wait = 0.1
    for tries_left in reversed(range(TRIES)):
        try:
            answer = http.request(method, URL + path, timeout=90, **options)
        except requests.ConnectionError as error:
            if not tries_left:
                raise Refused(code="no_response", status=0, detail=str(error)) from error
        else:
            if answer.ok:
                return answer
            if answer.status_code not in (429, 500, 503, 507) or not tries_left:
                problem = answer.json()
                fields = [fault["field"] for fault in problem.get("errors", [])]
                raise Refused(
                    code=problem["code"],
                    status=answer.status_code,
                    detail=problem["detail"],
                    fields=fields or [problem["field"]] if "field" in problem else [],
                )
            wait = max(wait, float(answer.headers.get("Retry-After", 0)))
        time.sleep(wait)
        wait *= 2
    raise AssertionError("the last try returns or raises")


def listed(path: str, limit: int) -> list[Any]:
    """The items of all pages of a list."""
    found: list[Any] = []
    cursor = None
    while True:
        page = call("GET", path, params={"limit": limit, "cursor": cursor}).json()
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            return found


def create_channel(channel: str, settings: dict[str, Any]) -> Any:
    return call("PUT", f"/channels/{channel}", json=settings).json()


def register(channel: str, consumer: str, settings: dict[str, Any]) -> Any:
    return call("PUT", f"/channels/{channel}/consumers/{consumer}", json=settings).json()


def publish(
    channel: str,
    body: str | None = None,
    body_base64: str | None = None,
    id: str | None = None,
    event_type: str | None = None,
    ordering_key: str | None = None,
    priority: int | None = None,
    deliver_in: float | None = None,
    headers: dict[str, str] | None = None,
    content_type: str = "application/json",
) -> Any:
    said = {
        "Content-Type": content_type,
        # The same key at each try: otherwise a lost response would store the message twice.
        "Idempotency-Key": id or str(uuid.uuid4()),
        "Hookstation-Event-Type": event_type,
        "Hookstation-Ordering-Key": ordering_key,
        "Hookstation-Priority": None if priority is None else str(priority),
        "Hookstation-Delay": None if deliver_in is None else str(round(deliver_in * 1000)),
        **{f"Hookstation-Header-{name}": value for name, value in (headers or {}).items()},
    }
    data = bytes_of(body, body_base64)
    answer = call("POST", f"/channels/{channel}/messages", headers=said, data=data).json()
    return {"id": answer["id"], "duplicate": answer["duplicate"]}


def publish_batch(channel: str, messages: list[dict[str, Any]]) -> Any:
    items = []
    for message in messages:
        item = {name: value for name, value in message.items() if name != "id"}
        items.append({**item, "idempotency_key": message.get("id") or str(uuid.uuid4())})
    answer = call("POST", f"/channels/{channel}/messages/batch", json=items).json()
    return {"results": [result_of(item) for item in answer["items"]]}


def result_of(item: dict[str, Any]) -> dict[str, Any]:
    if item["status"] >= 300:
        return {"error": item["code"]}
    return {"id": item["id"], "duplicate": item["duplicate"]}


def list_messages(channel: str) -> Any:
    return {"ids": [item["id"] for item in listed(f"/channels/{channel}/messages", 10)]}


def message(id: str) -> Any:
    return call("GET", f"/messages/{id}").json()


def move(id: str, deliver_in: float | None = None, priority: int | None = None) -> Any:
    said: dict[str, Any] = {"delay_ms": None if deliver_in is None else round(deliver_in * 1000)}
    said["priority"] = priority
    given = {name: value for name, value in said.items() if value is not None}
    return call("PATCH", f"/messages/{id}", json=given).json()


def cancel(id: str) -> Any:
    return call("DELETE", f"/messages/{id}").json()


def receive(
    channel: str,
    consumer: str,
    max: int = 10,
    wait: float = 0,
    lease: int = 30,
    worker_id: str | None = None,
    resume: bool = False,
) -> Any:
    said: dict[str, Any] = {"max": max, "wait_s": int(wait), "lease_s": lease, "resume": resume}
    if worker_id is not None:
        said["worker_id"] = worker_id
    path = f"/channels/{channel}/consumers/{consumer}/receive"
    return {"messages": [shown(it) for it in call("POST", path, json=said).json()["messages"]]}


def shown(received: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "lease", "attempt", "event_type", "ordering_key", "priority", "headers")
    found = {name: received[name] for name in (*names, "content_type")}
    if "body_url" in received:
        body = call("GET", f"/messages/{received['id']}/body").content
    else:
        body = bytes_of(received.get("body"), received.get("body_base64"))
    return {**found, "body_base64": encoded(body)}


def settle(word: str, lease: str, **said: Any) -> Any:
    given = {name: value for name, value in said.items() if value is not None}
    answer = call("POST", f"/leases/{word}", json={"leases": [lease], **given}).json()
    if answer["failed"]:
        raise Refused(code=answer["failed"][0]["error"], status=200, detail="The lease is lost.")
    return {}


def ack(lease: str) -> Any:
    return settle("ack", lease)


def nack(lease: str, delay: int | None = None, error: str | None = None) -> Any:
    return settle("nack", lease, delay_s=delay, error=error)


def extend(lease: str, seconds: int) -> Any:
    return settle("extend", lease, lease_s=seconds)


def release(lease: str, delay: int | None = None) -> Any:
    return settle("release", lease, delay_s=delay)


def dead_letters(channel: str, consumer: str) -> Any:
    path = f"/channels/{channel}/consumers/{consumer}/dead-letters"
    return {"ids": [item["message_id"] for item in listed(path, 10)]}


def replay_delivery(id: str) -> Any:
    return call("POST", f"/deliveries/{id}/replay", json={}).json()


def put_schedule(channel: str, schedule: str, settings: dict[str, Any]) -> Any:
    return call("PUT", f"/channels/{channel}/schedules/{schedule}", json=settings).json()


def get_schedule(channel: str, schedule: str) -> Any:
    return call("GET", f"/channels/{channel}/schedules/{schedule}").json()


def delete_schedule(channel: str, schedule: str) -> Any:
    call("DELETE", f"/channels/{channel}/schedules/{schedule}")
    return {}


def verify(secret: str, headers: dict[str, str], body_base64: str) -> Any:
    """Verify a signature by Standard Webhooks 1.0.0."""
    body = base64.b64decode(body_base64)
    given = {name.lower(): value for name, value in headers.items()}
    id, timestamp = given["webhook-id"], given["webhook-timestamp"]
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    signatures = given["webhook-signature"].split(" ")
    expected = "v1," + base64.b64encode(digest).decode()
    is_fresh = abs(time.time() - int(timestamp)) <= TOLERANCE_S
    if not is_fresh or not any(hmac.compare_digest(expected, one) for one in signatures):
        raise Refused(code="bad_signature", status=0, detail="It is not signed, or is too old.")
    return {"id": id}


OPERATIONS = {
    operation.__name__: operation
    for operation in (
        *(create_channel, register, publish, publish_batch, list_messages, message, move, cancel),
        *(receive, ack, nack, extend, release, dead_letters, replay_delivery),
        *(put_schedule, get_schedule, delete_schedule, verify),
    )
}

if __name__ == "__main__":
    serve("requests", OPERATIONS)
