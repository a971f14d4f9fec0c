"""Make messages that wait, ordering keys, leases and schedules, for pages to show.

They are made through the API of the running broker, whose sweeps would change rows written to the
tables.
"""

from typing import Any

from tests.support.broker import Broker, wait_until

ROOMS, PRINTING, ARCHIVING, TEXTING = "rooms", "printing", "campaigns", "texting"
JOBS, DEAD_JOBS, RUNNER, INSPECTOR = "jobs", "jobs.dead", "job-runner", "inspector"
SENDER, STRICT, PRINTER, GATEWAY = "sender", "strict", "label-printer", "whatsapp"
PAUSED, BLOCKED = "customer/4711/room-with-a-long-name-" + "x" * 200, "room-7"
LONG = "quarterly-figures-of-all-subsidiaries-and-their-branches-as-agreed-with-the-auditors-2019"
KEYS, AHEAD, HELD = 200, 240, 12
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def fill(broker: Broker) -> None:
    """Make everything, in a second or two."""
    recurring(broker)
    key_rows(broker)
    leases(broker)
    dead_letter_queue(broker)
    called_back(broker)
    timeline(broker)


def timeline(broker: Broker) -> None:
    """Make messages that are due in the next minutes, days and months, most of them in one hour."""
    broker.call("PUT", f"/channels/{ARCHIVING}", 201, json={})
    many = [{"delay_ms": HOUR // 2, "spread_ms": HOUR // 4} for _ in range(AHEAD // 2)]
    far = [{"delay_ms": HOUR + number * DAY} for number in range(AHEAD // 4)]
    near = [{"delay_ms": HOUR + number * 5 * MINUTE} for number in range(AHEAD // 4)]
    batch(broker, ARCHIVING, [item | {"event_type": "campaign.due"} for item in many + far + near])


def recurring(broker: Broker) -> None:
    """Make schedules in every state."""
    place = f"/channels/{ROOMS}/schedules"
    broker.call("PUT", f"/channels/{ROOMS}", 201, json={})
    yearly = {"cron": "30 4 1 1 *", "body": '{"report": "yearly"}'}
    weekly = {"cron": "0 0 6 * * MON-FRI", "timezone": "America/Argentina/ComodRivadavia"}
    for name, values in {
        "yearly": yearly | {"description": "The figures of the year."},
        LONG: weekly | {"body": "\n".join(["figures"] * 40), "headers": {"X-Report": "q"}},
        "heartbeat": {"every_ms": HOUR, "overlap": "skip_if_undelivered", "body": "tick"},
        "once-more": {"every_ms": 100, "limit": 3, "body": "{}", "content_type": "text/plain"},
        "picture": {"every_ms": DAY, "body_base64": "/9j/4AAQ"},
        "failing": {"every_ms": 500, "event_type": "room.cleaned", "body": '{"room": 7}'},
    }.items():
        broker.call("PUT", f"{place}/{name}", 201, json=values)
    broker.call("POST", f"{place}/{LONG}/pause", 200)
    broker.call("POST", f"{place}/yearly/run", 202)
    schema = {"type": "object", "required": ["cleaner"]}
    broker.call("PUT", f"/channels/{ROOMS}/event-types/room.cleaned", 201, json={"schema": schema})
    wait_until(lambda: _last(broker, "failing") == "refused", 60, "the schedule goes on")
    broker.call("POST", f"{place}/failing/pause", 200)
    wait_until(lambda: _last(broker, "once-more") == "fired", 60, "the schedule does not begin")


def key_rows(broker: Broker) -> None:
    """Make many keys of a paused consumer, one of them paused, and a key whose head is dead."""
    place = f"/channels/{ROOMS}/consumers"
    sender = {"url": "http://127.0.0.1:9/rooms", "event_types": ["room.said"], "ordering": True}
    strict = {"head_of_line": "block", "max_attempts": 1, "event_types": ["room.moved"]}
    broker.call("PUT", f"{place}/{SENDER}", 201, json=sender)
    broker.call("POST", f"{place}/{SENDER}/pause", 200)
    broker.call("PUT", f"{place}/{STRICT}", 201, json=sender | strict)
    keys = [PAUSED, *(f"room-{number}" for number in range(1, KEYS))]
    said = [{"ordering_key": key, "event_type": "room.said"} for key in keys]
    moved = [{"ordering_key": BLOCKED, "event_type": "room.moved"}] * 3
    batch(broker, ROOMS, said + said[:20] + moved)
    wait_until(lambda: bool(key_row(broker, SENDER, PAUSED)), 60, "nothing stands")
    paused = key_row(broker, SENDER, PAUSED)
    broker.call(
        "POST", f"{place}/{SENDER}/ordering-keys/{paused}/pause", 200, json={"reason": "a look"}
    )
    wait_until(lambda: bool(key_row(broker, STRICT, BLOCKED, "blocked")), 60, "nothing is blocked")


def leases(broker: Broker) -> None:
    """Make leases of two workers, one of which expires soon, and messages that no one received."""
    place = f"/channels/{PRINTING}/consumers/{PRINTER}"
    broker.call("PUT", f"/channels/{PRINTING}", 201, json={})
    broker.call("PUT", place, 201, json={"mode": "pull"})
    batch(broker, PRINTING, [{} for _ in range(HELD + 3)])
    for most, seconds, worker in (
        (HELD // 2, 43_200, "printer-3.second-floor.harbour-warehouse.eu-north.example.com"),
        (HELD // 2, 1, "printer-1"),
    ):
        wish = {"max": most, "lease_s": seconds, "wait_s": 20, "worker_id": worker}
        broker.call("POST", f"{place}/receive", 200, json=wish)


def dead_letter_queue(broker: Broker) -> None:
    """Make a dead-letter queue with messages of another queue, to be redriven."""
    broker.call("PUT", f"/channels/{DEAD_JOBS}", 201, json={})
    broker.call("PUT", f"/channels/{DEAD_JOBS}/consumers/{INSPECTOR}", 201, json={"mode": "pull"})
    place = f"/channels/{JOBS}/consumers/{RUNNER}"
    broker.call("PUT", f"/channels/{JOBS}", 201, json={"kind": "queue"})
    values = {"mode": "pull", "max_attempts": 1, "dead_letter_channel": DEAD_JOBS}
    broker.call("PUT", place, 201, json=values)
    batch(broker, JOBS, [{"event_type": "job.created"}] * 3)
    wish = {"max": 2, "wait_s": 20}
    taken = broker.call("POST", f"{place}/receive", 200, json=wish)["messages"]
    leases = [one["lease"] for one in taken]
    broker.call("POST", "/leases/nack", 200, json={"leases": leases, "error": "out of paper"})


def called_back(broker: Broker) -> None:
    """Make a consumer whose provider acknowledges by callback."""
    broker.call("PUT", f"/channels/{TEXTING}", 201, json={})
    signature = {"preset": "meta-x-hub-256", "secret": "the provider's own"}
    correlation = {"preset": "whatsapp-cloud", "signature": signature, "verify_token": "harbour"}
    ack = {"mode": "callback", "timeout_ms": 60_000, "on_timeout": "proceed"}
    values = {"url": "http://127.0.0.1:9/texts", "ack": ack | {"correlation": correlation}}
    broker.call("PUT", f"/channels/{TEXTING}/consumers/{GATEWAY}", 201, json=values)


def key_row(broker: Broker, consumer: str, key: str, state: str = "") -> str:
    """The id of a key's row in this state, or '' while there is none."""
    place = f"/channels/{ROOMS}/consumers/{consumer}/ordering-keys"
    wanted = {"ordering_key": key} | ({"state": state} if state else {})
    found = broker.call("GET", place, 200, params=wanted)["items"]
    return str(found[0]["id"]) if found else ""


def batch(broker: Broker, channel: str, items: list[dict[str, Any]]) -> None:
    """Publish the items, each with a small body."""
    place = f"/channels/{channel}/messages/batch"
    broker.call("POST", place, 207, json=[{"body": "{}"} | item for item in items])


def _last(broker: Broker, name: str) -> str:
    last = broker.call("GET", f"/channels/{ROOMS}/schedules/{name}", 200)["last"]
    return str(last["result"]) if last else ""
