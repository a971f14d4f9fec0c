"""Redact options that identify a person on all pages, and delete them when the run ends."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.contract.jobs import MASK


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
