"""A request as a line for a shell, to be sent again by hand."""

import base64
import shlex
from collections.abc import Iterable

MAX_BODY_LENGTH = 64 * 1024
"""Shells take no line of any length."""


def line(url: str, headers: Iterable[tuple[str, str]], body: bytes) -> str:
    """``curl`` with these headers and exactly this body; '' when the body is too long for that."""
    if len(body) > MAX_BODY_LENGTH:
        return ""
    parts = [f"curl -isSg -X POST {shlex.quote(url)}"]
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers]
    text = body.decode("utf-8", errors="replace")
    is_plain = text.replace("\n", "").isprintable() and "\ufffd" not in text
    if not is_plain or text.startswith("@"):
        # What a terminal cannot carry, and what curl would take for the name of a file.
        encoded = base64.b64encode(body).decode()
        return f"echo {encoded} | base64 -d | " + " \\\n  ".join([*parts, "--data-binary @-"])
    return " \\\n  ".join([*parts, f"--data-binary {shlex.quote(text)}"])
