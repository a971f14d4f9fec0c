"""Code examples for the workers of a pull consumer, which run as copied."""

from delivery.rules.snippets import Snippet

KEY = "hsk_..."
"""Placeholder for the reader's API key."""


def receiving(api: str, channel: str, client_id: str) -> list[Snippet]:
    """Return code that receives and acknowledges; ``api`` is the URL up to ``/api/v1``."""
    place = {"API_HERE": api, "CONSUMER_HERE": f"channels/{channel}/consumers/{client_id}"}
    found = []
    for key, title, file_name, note, code in _ALL:
        for name, value in place.items():
            code = code.replace(name, value)
        found.append(Snippet(key, title, file_name, note, code))
    return found


_PYTHON = """\
import json
import os
import time
import urllib.error
import urllib.request

API = "API_HERE"
KEY = os.environ["HOOKSTATION_KEY"]  # a key of your team with the scope receive


def call(path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"{API}/{path}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def handle(message: dict) -> None:
    print(message["id"], message["event_type"], message.get("body"), flush=True)


while True:
    try:
        received = call("CONSUMER_HERE/receive", {"max": 10, "wait_s": 20, "lease_s": 60})
        done = []
        for message in received["messages"]:
            try:
                handle(message)
                done.append(message["lease"])
            except Exception as error:
                failed = {"leases": [message["lease"]], "error": str(error)[:300]}
                call("leases/nack", failed)
        if done:
            call("leases/ack", {"leases": done})
    except urllib.error.URLError as error:  # also what the server refuses; what is held comes again
        print(error, flush=True)
        time.sleep(1)
"""

_SHELL = """\
# One message; HOOKSTATION_KEY is a key of your team with the scope receive.
curl -sS API_HERE/CONSUMER_HERE/receive \\
  -H "Authorization: Bearer $HOOKSTATION_KEY" -H 'Content-Type: application/json' \\
  -d '{"max": 1, "wait_s": 20}'

# Done: put the lease of the answer in here.
curl -sS API_HERE/leases/ack \\
  -H "Authorization: Bearer $HOOKSTATION_KEY" -H 'Content-Type: application/json' \\
  -d '{"leases": ["lse_..."]}'
"""

_ALL = (
    ("python", "Python", "worker.py", "A worker; start as many as you like.", _PYTHON),
    ("shell", "Shell", "receive.sh", "One message by hand.", _SHELL),
)
