"""Write a request as a shell command that sends it again."""

import base64
import shlex
from collections.abc import Iterable

MAX_BODY_LENGTH = 64 * 1024
"""Limit for bodies, since shells limit the length of a command."""


def line(url: str, headers: Iterable[tuple[str, str]], body: bytes) -> str:
    """``curl`` with these headers and exactly this body; '' if the body is too long."""
    if len(body) > MAX_BODY_LENGTH:
        return ""
    parts = [f"curl -isSg -X POST {shlex.quote(url)}"]
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers]
    text = body.decode("utf-8", errors="replace")
    is_plain = text.replace("\n", "").isprintable() and "\ufffd" not in text
    if not is_plain or text.startswith("@"):
        # Not printable, or curl would take the text for a file name.
        encoded = base64.b64encode(body).decode()
        return f"echo {encoded} | base64 -d | " + " \\\n  ".join([*parts, "--data-binary @-"])
    return " \\\n  ".join([*parts, f"--data-binary {shlex.quote(text)}"])
