"""Redact options that identify a person on all pages, and delete them when the run ends."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SUBJECT = "subject"
"""Replaces them in an ended run's options with a digest (delivery/core/pipeline_jobs.py)."""
MASK = "***"


def digest(options: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the SHA-256 of these options, equal for equal options; '' when none is set."""
    asked = {name: sorted(options.get(name) or []) for name in names}
    if not any(asked.values()):
        return ""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def kept(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the options that an ended run keeps."""
    rest = {name: value for name, value in options.items() if name not in names}
    known = digest(options, names)
    return rest | {SUBJECT: known} if known else rest


class Redactor:
    """Replace private options in the texts of a run."""

    def __init__(self, options: Mapping[str, Any], names: Iterable[str]) -> None:
        said = {str(value) for name in names for value in options.get(name) or [] if value}
        # An error may quote the escaped value.
        said |= {repr(value)[1:-1] for value in said} | {json.dumps(value)[1:-1] for value in said}
        longest_first = sorted(said, key=len, reverse=True)
        # Whole words only, since a short value may be part of another word.
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
        self._pattern = re.compile(pattern) if said else None

    def __call__(self, text: str) -> str:
        """Return the text without private options."""
        return self._pattern.sub(MASK, text) if self._pattern else text
