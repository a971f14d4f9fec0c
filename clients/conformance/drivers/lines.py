"""The line protocol of drivers: one JSON object per line in, one per line out.

``{"op": "publish", ...}`` is answered with ``{"ok": {...}}`` or ``{"error": {...}}``.
docs/clients/README.md lists the operations.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable
from typing import Any


class Refused(Exception):
    """An operation that failed; ``members`` are those of the response's ``error``."""

    def __init__(self, **members: Any) -> None:
        super().__init__(members.get("detail", ""))
        self.members = members


def serve(client: str, operations: dict[str, Callable[..., Any]]) -> None:
    """Answer every line of standard input until it ends.

    ``operations`` are called with the members of the request as keyword arguments. Their result is
    the answer's ``ok``.
    """
    known = {"now": time.time, **operations}
    for line in sys.stdin:
        request = json.loads(line)
        name = request.pop("op")
        if name == "hello":
            answer: dict[str, Any] = {"ok": {"client": client, "ops": sorted(known)}}
        else:
            try:
                answer = {"ok": known[name](**request)}
            except Refused as refused:
                answer = {"error": refused.members}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def bytes_of(body: str | None, body_base64: str | None) -> bytes:
    """Decode a request's body, given as text or base64."""
    if body_base64 is not None:
        return base64.b64decode(body_base64)
    return (body or "").encode()


def encoded(body: bytes) -> str:
    """Encode a body as responses hold it."""
    return base64.b64encode(body).decode()
