"""Redact options that identify a person: no page shows them, and they end with their run."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SUBJECT = "subject"
"""Instead of them in an ended run's options: a digest (delivery/rules/pipeline_jobs.py)."""
MASK = "***"


def digest(options: Mapping[str, Any], names: Iterable[str]) -> str:
    """SHA-256 of what was asked for, the same whenever the same is asked; '' for nothing."""
    asked = {name: sorted(options.get(name) or []) for name in names}
    if not any(asked.values()):
        return ""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def kept(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Options of a run that has ended."""
    rest = {name: value for name, value in options.items() if name not in names}
    known = digest(options, names)
    return rest | {SUBJECT: known} if known else rest


class Redactor:
    """Hides what was said about somebody in what a run says."""

    def __init__(self, options: Mapping[str, Any], names: Iterable[str]) -> None:
        said = {str(value) for name in names for value in options.get(name) or [] if value}
        # As an error may quote it too.
        said |= {repr(value)[1:-1] for value in said} | {json.dumps(value)[1:-1] for value in said}
        longest_first = sorted(said, key=len, reverse=True)
        # A short one is no part of other words.
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
        self._pattern = re.compile(pattern) if said else None

    def __call__(self, text: str) -> str:
        """The text without it."""
        return self._pattern.sub(MASK, text) if self._pattern else text
